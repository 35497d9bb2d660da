"""Serve OpenAI's Responses API with answers that a test sets."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web
from scripted_upstream import ScriptedUpstream

Items = list[dict[str, Any]]


def message_item(text: str, item_id: str = "msg_1") -> dict[str, Any]:
    """Return an output item of type `message`."""
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": item_id, "status": "completed", "role": "assistant", "content": content}


class ScriptedResponses(ScriptedUpstream):
    """Provider: `say` returns the items of an answer, `break_after` counts events."""

    def __init__(self) -> None:
        super().__init__()
        self.say: Callable[[dict[str, Any]], Items] = lambda request: [message_item("hello")]
        self.bodies: list[bytes] = []
        self.sent = b""

    def _route(self, app: web.Application) -> None:
        app.router.add_post("/v1/responses", self._responses)
        app.router.add_get("/v1/responses/{id}", self._stored)
        app.router.add_get("/v1/files", self._files)

    async def _stored(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"id": request.match_info["id"], "object": "response", "output": []})

    async def _files(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [{"id": "file-of-another-tenant"}]})

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        body = json.loads(self.bodies[-1])
        self.requests.append(body)
        reply = {
            "id": f"resp_{len(self.requests)}",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": body["model"],
            "output": self.say(body),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": body.get("tools") or [],
            "usage": {"input_tokens": 5, "output_tokens": 9, "total_tokens": 14},
        }
        if not body.get("stream"):
            self.sent = json.dumps(reply).encode()
            return web.Response(body=self.sent, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self.sent = b""
        for number, event in enumerate(_events(reply)):
            if number == self.break_after:
                transport = request.transport
                assert transport is not None
                transport.abort()
                break
            out = f"event: {event['type']}\ndata: {json.dumps(event | {'sequence_number': number})}\n\n".encode()
            self.sent += out
            await response.write(out)
        return response


def _events(reply: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": reply | {"status": "in_progress", "output": []}}
    for index, item in enumerate(reply["output"]):
        where = {"item_id": item["id"], "output_index": index}
        empty: dict[str, Any] = (
            {"content": []} if "content" in item else {"arguments": ""} if "arguments" in item else {}
        )
        yield {"type": "response.output_item.added", "output_index": index, "item": item | empty}
        for part in item.get("content", ()):
            at = where | {"content_index": 0}
            yield {"type": "response.content_part.added", "part": part | {"text": ""}} | at
            for character in part["text"]:
                yield {"type": "response.output_text.delta", "delta": character, "logprobs": []} | at
        if "arguments" in item:
            yield {"type": "response.function_call_arguments.delta", "delta": item["arguments"]} | where
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": reply}
