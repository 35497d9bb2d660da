"""The worker over HTTP as a plain ASGI application: `/v1/chat/completions`, `/v1/score`, `/v1/models`, `/health`,
`/metrics`.

Plain, since a worker of a tiny model spends most of its time outside the model.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from stepstream.services.inference import measures, protocol, scores
from stepstream.services.inference.chat import ChatTokenizer, StreamedText, TemplateError
from stepstream.services.inference.engine import BadPromptError, EngineError, NoValueError, TokenChunk
from stepstream.services.inference.protocol import ChatRequest, RequestError
from stepstream.services.inference.tool_parsers import ToolParser
from stepstream.services.inference.worker import Worker

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_JSON = [(b"content-type", b"application/json")]
_SSE = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class App:
    """The ASGI application of one worker."""

    def __init__(self, worker: Worker, parser: ToolParser) -> None:
        self._worker = worker
        self._parser = parser
        self._routes: dict[tuple[str, str], Callable[[Receive, Send], Awaitable[None]]] = {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/score"): self._score,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        handler = self._routes.get((scope["method"], scope["path"]))
        if handler is None:
            error = RequestError(404, f"no {scope['method']} {scope['path']} here")
            await _respond(send, error.status, error.body)
        else:
            await handler(receive, send)

    async def _models(self, _receive: Receive, send: Send) -> None:
        worker = self._worker
        models = [{"id": worker.model, "object": "model", "owned_by": "stepstream", "version": worker.version}]
        served = models if worker.version is not None else []
        await _respond(send, 200, orjson.dumps({"object": "list", "data": served}))

    async def _health(self, _receive: Receive, send: Send) -> None:
        worker = self._worker
        state = {"model": worker.model, "version": worker.version, "in_flight": worker.in_flight}
        if worker.version is None:
            state["message"] = f"waiting for a checkpoint of '{worker.model}'"
        await _respond(send, 200 if worker.version is not None else 503, orjson.dumps(state))

    async def _metrics(self, _receive: Receive, send: Send) -> None:
        await _respond(send, 200, generate_latest(), [(b"content-type", CONTENT_TYPE_LATEST.encode())])

    async def _chat(self, receive: Receive, send: Send) -> None:
        await self._counted(self._answer, receive, send)

    async def _score(self, receive: Receive, send: Send) -> None:
        await self._counted(self._value, receive, send)

    async def _counted(self, answer: Callable[[Receive, Send], Awaitable[int]], receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        self._worker.in_flight += 1
        status = 500
        try:
            status = await answer(receive, send)
        except RequestError as error:
            status = error.status
            await _respond(send, status, error.body)
        finally:
            self._worker.in_flight -= 1
            measures.IN_FLIGHT.set(self._worker.in_flight)
            measures.REQUESTS.labels(str(status)).inc()
            measures.REQUEST_SECONDS.observe(time.perf_counter() - started)

    async def _answer(self, receive: Receive, send: Send) -> int:
        request = protocol.read_request(await _body(receive))
        worker, tokenizer = self._worker, self._tokenizer_of(request.model)
        try:
            prompt_ids = tokenizer.prompt_ids(request.messages, request.tools)
            room = worker.max_length - len(prompt_ids)
            if room < 1:
                raise BadPromptError(f"the prompt has {len(prompt_ids)} tokens of at most {worker.max_length - 1}")
            chunks = worker.engine.generate(prompt_ids, request.sampling(room))
            async with aclosing(chunks):
                reply = self._stream if request.stream else self._whole
                await reply(request, tokenizer, prompt_ids, chunks, send)
        except (TemplateError, BadPromptError) as error:
            raise RequestError(400, str(error), param="messages") from error
        except EngineError as error:
            raise RequestError(503, str(error)) from error
        return 200

    async def _value(self, receive: Receive, send: Send) -> int:
        request = scores.read_score_request(await _body(receive))
        worker, tokenizer = self._worker, self._tokenizer_of(request.model)
        try:
            prompts, tokens = request.prompt_ids(tokenizer), request.tokens(tokenizer)
            values, version = await worker.engine.score(prompts, tokens)
        except (TemplateError, BadPromptError) as error:
            raise RequestError(400, str(error), param="prompts") from error
        except NoValueError as error:
            raise RequestError(501, str(error), param="head") from error
        except EngineError as error:
            raise RequestError(503, str(error)) from error
        measures.PROMPT_TOKENS.inc(sum(map(len, prompts)))
        await _respond(send, 200, scores.score_reply(worker.model, version, values))
        return 200

    def _tokenizer_of(self, model: str) -> ChatTokenizer:
        """The tokenizer of a model; raises RequestError where it is not served here, or not yet."""
        worker = self._worker
        if model != worker.model:
            raise RequestError(
                404,
                f"the model '{model}' is not served here; this worker serves '{worker.model}'",
                param="model",
                code="model_not_found",
            )
        if worker.tokenizer is None:
            raise RequestError(503, f"waiting for a checkpoint of '{worker.model}'")
        return worker.tokenizer

    async def _whole(
        self,
        request: ChatRequest,
        tokenizer: ChatTokenizer,
        prompt_ids: list[int],
        generated: AsyncGenerator[TokenChunk, None],
        send: Send,
    ) -> None:
        chunks = [chunk async for chunk in generated]
        token_ids = [token for chunk in chunks for token in chunk.token_ids]
        _count(len(prompt_ids), len(token_ids))
        text = tokenizer.text(token_ids)
        call = self._parser.parse(text, request.tool_names) if chunks[-1].finish_reason == "stop" else None
        await _respond(send, 200, protocol.whole_reply(request, tokenizer, prompt_ids, chunks, text, call))

    async def _stream(
        self,
        request: ChatRequest,
        tokenizer: ChatTokenizer,
        prompt_ids: list[int],
        generated: AsyncGenerator[TokenChunk, None],
        send: Send,
    ) -> None:
        reply = StreamedReply(request, tokenizer, prompt_ids, self._parser)
        started = False
        async for chunk in generated:
            if not started:  # only now is it sure that the prompt was good
                await send({"type": "http.response.start", "status": 200, "headers": _SSE})
                started = True
            await send({"type": "http.response.body", "body": reply.events(chunk), "more_body": True})
        _count(len(prompt_ids), reply.tokens)
        await send({"type": "http.response.body", "body": protocol.DONE})


class StreamedReply:
    """Makes the events of a streamed reply; text that may become a tool call is held back until it is known."""

    def __init__(
        self, request: ChatRequest, tokenizer: ChatTokenizer, prompt_ids: list[int], parser: ToolParser
    ) -> None:
        self._request, self._tokenizer, self._prompt_ids = request, tokenizer, prompt_ids
        self._parser = parser
        self._pieces = StreamedText(tokenizer)
        self._held = ""
        self._holding = True
        self._head: dict[str, Any] = {}
        self.tokens = 0
        """Response tokens so far."""

    def events(self, chunk: TokenChunk) -> bytes:
        """The events of one chunk, as bytes to send."""
        request = self._request
        delta: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        if not self._head:
            self._head = protocol.new_reply("chat.completion.chunk", request.model)
            delta["role"] = "assistant"
            if request.return_token_ids:
                extra["prompt_token_ids"] = self._prompt_ids
        self.tokens += len(chunk.token_ids)
        call = self._content(chunk, delta)
        choice: dict[str, Any] = {
            "index": 0,
            "delta": delta,
            "finish_reason": protocol.finish_reason(chunk.finish_reason, call),
        }
        if request.return_token_ids:
            choice["token_ids"] = chunk.token_ids
        if request.logprobs:
            choice["logprobs"] = protocol.logprobs(request, self._tokenizer, [chunk])
        if chunk.finish_reason is not None:
            choice["weight_versions"] = protocol.weight_versions(chunk)
        events = protocol.event(self._head | extra | {"choices": [choice]})
        if chunk.finish_reason is not None and request.include_usage:
            counts = protocol.usage(len(self._prompt_ids), self.tokens)
            events += protocol.event(self._head | {"choices": [], "usage": counts})
        return events

    def _content(self, chunk: TokenChunk, delta: dict[str, Any]) -> Any:
        """Puts what may be told now into `delta`; returns the tool call if the response is one."""
        names = self._request.tool_names
        self._held += self._pieces.add(chunk.token_ids, last=chunk.finish_reason is not None)
        if chunk.finish_reason == "stop" and self._holding:
            call = self._parser.parse(self._held, names)
            if call is not None:
                delta["tool_calls"] = protocol.tool_calls(call, indexed=True)
                return call
        if self._holding and chunk.finish_reason is None:
            self._holding = self._parser.may_become_call(self._held, names)
        if not self._holding or chunk.finish_reason is not None:
            delta["content"], self._held = self._held, ""
        return None


def _count(prompt: int, response: int) -> None:
    measures.PROMPT_TOKENS.inc(prompt)
    measures.RESPONSE_TOKENS.inc(response)


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(400, "the caller left")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*(headers or _JSON), length]})
    await send({"type": "http.response.body", "body": body})
