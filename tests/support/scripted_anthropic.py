"""Serve Anthropic's Messages protocol with answers that a test sets."""

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web
from anthropic_blocks import events, message
from scripted_upstream import ScriptedUpstream

Blocks = list[dict[str, Any]]
REQUEST_ID = "req_1"


class ScriptedAnthropic(ScriptedUpstream):
    """Provider: `say` returns the blocks of an answer, `fail` lasts until `recover`, `break_after` counts events."""

    def __init__(self) -> None:
        super().__init__()
        self.say: Callable[[dict[str, Any]], Blocks] = lambda request: [{"type": "text", "text": "hello"}]
        self.bodies: list[bytes] = []
        self.sent = b""
        self._failure: tuple[int, str, dict[str, str]] | None = None

    def fail(self, status: int, kind: str, **headers: str) -> None:
        """Answer with an error of this status and type; underscores in header names stand for hyphens."""
        self._failure = status, kind, {name.replace("_", "-"): value for name, value in headers.items()}

    def recover(self) -> None:
        """Answer normally again."""
        self._failure = None
        self.break_after = None

    def _route(self, app: web.Application) -> None:
        app.router.add_post("/v1/messages", self._messages)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        body = json.loads(self.bodies[-1])
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.queries.append(request.rel_url.raw_query_string)
        named = {"request-id": REQUEST_ID}
        if self._failure is not None:
            status, kind, headers = self._failure
            self.sent = json.dumps({"type": "error", "error": {"type": kind, "message": "scripted"}}).encode()
            return web.Response(body=self.sent, status=status, headers=named | headers, content_type="application/json")
        blocks = self.say(body)
        calls = any(block["type"] == "tool_use" for block in blocks)
        reply = message(blocks, model=body["model"], stop_reason="tool_use" if calls else "end_turn")
        if body.get("stream"):
            return await self._events(request, reply, named)
        self.sent = json.dumps(reply).encode()
        return web.Response(body=self.sent, headers=named, content_type="application/json")

    async def _events(self, request: web.Request, reply: dict[str, Any], named: dict[str, str]) -> web.StreamResponse:
        response = web.StreamResponse(headers=named | {"content-type": "text/event-stream"})
        await response.prepare(request)
        self.sent = b""
        for position, event in enumerate(events(reply, 3)):
            if position == self.break_after:
                transport = request.transport
                assert transport is not None
                transport.abort()
                break
            out = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            self.sent += out
            await response.write(out)
        return response
