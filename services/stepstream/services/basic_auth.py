"""Require basic authentication of callers (ASGI)."""

import base64
import secrets

from starlette.types import ASGIApp, Receive, Scope, Send

_OPEN = frozenset({"/metrics", "/ready"})


class BasicAuth:
    """ASGI middleware: answers 401 to callers without the credentials; `/metrics` and `/ready` are open."""

    def __init__(self, app: ASGIApp, user_info: str, body: bytes, content_type: str) -> None:
        """Wrap `app`.

        Args:
            app: serves the permitted requests.
            user_info: `user:password`; empty: everybody is permitted.
            body: body of the refusal.
            content_type: its type.
        """
        self._app = app
        self._expected = b"Basic " + base64.b64encode(user_info.encode()) if user_info else b""
        self._body = body
        self._headers = [(b"content-type", content_type.encode()), (b"www-authenticate", b"Basic")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or refuse it."""
        if scope["type"] != "http" or not self._expected or scope["path"] in _OPEN or self._is_permitted(scope):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": self._headers})
        await send({"type": "http.response.body", "body": self._body})

    def _is_permitted(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return secrets.compare_digest(given, self._expected)
