"""What the gateway itself refuses or cannot do, and how it is told: the body of OpenAI's API errors."""

from typing import Any

import orjson


class GatewayError(Exception):
    """An answer that is an error: HTTP status, OpenAI's error type, and a message that says what to do."""

    status = 500
    type = "server_error"


class BadRequest(GatewayError):
    """The caller sent something that cannot be understood; the message names it."""

    status = 400
    type = "invalid_request_error"


class TooLarge(GatewayError):
    """The body is larger than the gateway takes."""

    status = 413
    type = "invalid_request_error"


class NoUpstream(GatewayError):
    """No inference worker answered within the deadline; the message lists each with its fault."""

    status = 503
    type = "upstream_unavailable"


class NotAccepted(GatewayError):
    """The event cannot be kept now; post it again later."""

    status = 503
    type = "backlog_full"


def error_body(message: str, kind: str, code: str | None = None) -> bytes:
    """The JSON body of an error, as OpenAI's clients read it."""
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return orjson.dumps(body)
