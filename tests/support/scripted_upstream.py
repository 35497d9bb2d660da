"""Serve OpenAI's chat protocol, with token ids and weight versions, with answers that a test sets."""

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

from aiohttp import web
from waiting import TIMEOUT_S

from stepstream.embedded.ports import free_block

EOS = 2
ROLES = {"system": 3, "user": 4, "assistant": 5, "tool": 6}
LOGPROB = -0.25


def text_ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def message_text(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls") or []
    if calls:
        return "".join(f"{c['function']['name']}({json.loads(c['function']['arguments'])['input']})" for c in calls)
    return message.get("content") or ""


def prompt_ids(messages: list[dict[str, Any]]) -> list[int]:
    """Return the ids of a prompt; an answer has the same ids in later prompts (append-only)."""
    ids = []
    for message in messages:
        ids += [ROLES[message["role"]], *text_ids(message_text(message)), EOS]
    return [*ids, ROLES["assistant"]]


def response_ids(text: str) -> list[int]:
    return [*text_ids(text), EOS]


def solve(request: dict[str, Any]) -> str:
    """Return the next correct reply of a lookup task."""
    messages = request["messages"]
    left, operator, right = re.fullmatch(r"q:(\w)(.)(\w)", messages[0]["content"]).groups()  # type: ignore[union-attr]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    replies = [f"get({left})", f"get({right})"]
    if len(results) >= 2:
        replies.append(f"calc({results[0]}{operator}{results[1]})")
    if len(results) == 3:
        replies.append(f"ans({results[2]})")
    return replies[len(results)]


class ScriptedUpstream:
    """Worker in a thread: `reply` returns the text, `status` sets an error, `hold` delays answers, `held` counts."""

    def __init__(self) -> None:
        self.port = free_block(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.reply: Callable[[dict[str, Any]], str] = lambda request: "hello"
        self.status = 200
        self.version = 7
        self.tokens = True
        self.reply_fields: dict[str, Any] = {}
        self.prompt_ids = prompt_ids
        self.break_after: int | None = None
        self.hang_up = False
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.queries: list[str] = []
        self.cancelled = 0
        self.held = 0
        self._free: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    def start(self) -> None:
        """Listen on the port, also after `die`."""
        self._loop = asyncio.new_event_loop()
        self._free = asyncio.Event()
        self._free.set()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(TIMEOUT_S)

    def die(self) -> None:
        """Abort all connections at once, as after kill -9."""
        if self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._thread = None

    def hold(self) -> None:
        """Delay all answers until `release`."""
        self._free.clear()

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._free.set)

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        ready.set()
        self._loop.run_forever()
        for transport in list(self._transports()):
            transport.abort()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=64 * 1_048_576)
        self._route(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    def _route(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/embeddings", self._echo)

    def _transports(self) -> Iterator[asyncio.Transport]:
        server = self._runner.server
        assert server is not None
        for connection in server.connections:
            if connection.transport is not None:
                yield connection.transport

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "demo", "object": "model"}]})

    async def _echo(self, request: web.Request) -> web.Response:
        return web.json_response({"path": request.path_qs, "body": await request.json()})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.queries.append(request.rel_url.raw_query_string)
        self.held += 1
        try:
            await self._free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.held -= 1
        if self.hang_up:
            assert request.transport is not None
            request.transport.abort()
        if self.status != 200:
            error = {"message": "scripted", "type": "scripted_error", "param": None, "code": None}
            return web.json_response({"error": error}, status=self.status)
        text = self.reply(body)
        texts = [text, *(f"{text}{number}" for number in range(1, body.get("n") or 1))]
        if not body.get("stream"):
            return web.json_response(self._completion(body, texts))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": keep-alive\n\n")
        for index, alternative in enumerate(texts):
            if not await self._stream(request, response, body, alternative, index):
                return response
        await response.write(b"data: [DONE]\n\n")
        return response

    def _completion(self, body: dict[str, Any], texts: list[str]) -> dict[str, Any]:
        reply: dict[str, Any] = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [self._choice(body, text, index) for index, text in enumerate(texts)],
            **self.reply_fields,
        }
        if self.tokens:
            reply["prompt_token_ids"] = self.prompt_ids(body["messages"])
        return reply

    def _choice(self, body: dict[str, Any], text: str, index: int) -> dict[str, Any]:
        ids = response_ids(text)
        call = self._tool_call(body, text)
        message = {"role": "assistant", "content": None if call else text} | ({"tool_calls": [call]} if call else {})
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": "tool_calls" if call else "stop"}
        if self.tokens:
            choice["token_ids"] = ids
            choice["logprobs"] = {"content": [_logprob(i) for i in ids]}
            choice["weight_versions"] = [{"version": self.version, "start": 0, "end": len(ids)}]
        return choice

    async def _stream(
        self, request: web.Request, response: web.StreamResponse, body: dict[str, Any], text: str, index: int
    ) -> bool:
        """Stream one alternative, token by token; return False if `break_after` cut the connection."""
        ids = response_ids(text)
        call = self._tool_call(body, text)
        for position, token in enumerate(ids):
            if position == self.break_after:
                transport = request.transport
                assert transport is not None
                transport.abort()
                return False
            last = position == len(ids) - 1
            delta: dict[str, Any] = {} if last else {"content": chr(token)}
            if call is not None:
                delta = {"tool_calls": [call | {"index": 0}]} if position == 0 else {}
            finish_reason = ("tool_calls" if call else "stop") if last else None
            choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": finish_reason}
            chunk: dict[str, Any] = {
                "id": "c",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": body["model"],
                "choices": [choice],
            }
            if self.tokens:
                choice |= {"token_ids": [token], "logprobs": {"content": [_logprob(token)]}}
                if position == 0:
                    chunk |= {"prompt_token_ids": self.prompt_ids(body["messages"]), **self.reply_fields}
                if last:
                    choice["weight_versions"] = [{"version": self.version, "start": 0, "end": len(ids)}]
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        return True

    @staticmethod
    def _tool_call(body: dict[str, Any], text: str) -> dict[str, Any] | None:
        names = {tool["function"]["name"] for tool in body.get("tools") or []}
        match = re.fullmatch(r"(\w+)\((.*)\)", text)
        if match is None or match[1] not in names:
            return None
        arguments = json.dumps({"input": match[2]})
        return {"id": "call_1", "type": "function", "function": {"name": match[1], "arguments": arguments}}


def _logprob(token: int) -> dict[str, Any]:
    return {"token": chr(token), "logprob": LOGPROB, "bytes": None, "top_logprobs": []}
