"""Refuse requests that a page of another site makes a browser send: every service uses it.

A browser lets any page post to an address of this machine, and a name that resolves to it (DNS rebinding) lets the page
read the answer too. Programs other than browsers send no Origin, and the Host of the address that they were given.
"""

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from stepstream.config import HttpSettings

# Ends of names that nobody can register, so that no page has them.
_PRIVATE = (".localhost", ".local", ".internal", ".home.arpa", ".test", ".svc")


class SameSite:
    """ASGI middleware: answers 403 to a foreign Host or Origin."""

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        """Wrap `app`; `settings` has the further hosts and origins that are permitted."""
        self._app = app
        self._hosts = tuple(host.lower() for host in settings.allowed_hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.allowed_origins)
        # Callers send few values; reading one costs 4 % of a call of the gateway.
        self._refusal_of = lru_cache(64)(self._check)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or refuse it."""
        reason = self._refusal(scope) if scope["type"] == "http" else None
        if reason is None:
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": reason.encode()})

    def _refusal(self, scope: Scope) -> str | None:
        host = origin = b""
        for name, value in scope["headers"]:
            if name == b"host":
                host = host or value
            elif name == b"origin":
                origin = origin or value
        return self._refusal_of(host.decode("latin-1"), origin.decode("latin-1"))

    def _check(self, host: str, origin: str) -> str | None:
        if host and not is_permitted_host(host, self._hosts):
            return f"Host {host[:200]} is not a name of this service: add it to http.allowed_hosts\n"
        is_same = bool(host) and _netloc(origin).lower() == host.lower()
        if origin and not is_same and origin.lower() not in self._origins:
            return f"Origin {origin[:200]} is another site: add it to http.allowed_origins if its pages may call\n"
        return None


def is_permitted_host(host: str, permitted: Sequence[str] = ()) -> bool:
    """Return True if a page of another site cannot have this Host.

    These are addresses, names without a dot, names that nobody can register, and those of `permitted`, where `.example`
    stands for all names below it.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if not name:
        return False
    if "." not in name or name.endswith(_PRIVATE) or name.endswith(".svc.cluster.local"):
        return True
    if any(name == one or (one.startswith(".") and name.endswith(one)) for one in permitted):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _netloc(origin: str) -> str:
    """Return host and port of an origin; empty: it is malformed, or opaque as `null`."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
