"""Send a request with urllib and follow no redirect, which would carry its credentials to another host."""

import ssl
import urllib.request
from http.client import HTTPResponse
from typing import cast


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirect."""


def open_request(
    request: urllib.request.Request, timeout_s: float, context: ssl.SSLContext | None = None
) -> HTTPResponse:
    """Send a request and return its response, a context manager. Proxies come from the environment.

    Args:
        request: to an HTTP or HTTPS address.
        timeout_s: seconds without a byte.
        context: of TLS; None: the system's authorities.

    Raises:
        HTTPError: the status is 300 or more.
        OSError: no answer.
        HTTPException: the answer is no HTTP.
    """
    opener = urllib.request.build_opener(_NoRedirects(), urllib.request.HTTPSHandler(context=context))
    return cast(HTTPResponse, opener.open(request, timeout=timeout_s))
