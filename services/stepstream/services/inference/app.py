"""Serve the worker over HTTP: `/v1/chat/completions`, `/v1/score`, `/v1/models`, `/health`, `/metrics`.

It is a plain ASGI application, because a worker of a tiny model spends most of its time outside the model.
"""

import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from stepstream.services.inference import chat_api, choices, metrics, score_api
from stepstream.services.inference.chat_request import ChatRequest, read_request
from stepstream.services.inference.chat_tokenizer import ChatTokenizer, StreamedText, TemplateError
from stepstream.services.inference.choices import Generated
from stepstream.services.inference.engine import BadPromptError, EngineError, NoValueError, TokenChunk
from stepstream.services.inference.forward import ChatForwarder
from stepstream.services.inference.prompt import Prompt, build_prompt
from stepstream.services.inference.request_fields import RequestError
from stepstream.services.inference.stop_strings import StopTruncator
from stepstream.services.inference.tool_parsers import ToolParser
from stepstream.services.inference.worker import Slot, Worker
from stepstream.topics.events import Track
from stepstream.versions.rollouts import TRACKS

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_TRACK_HEADER = b"x-stepstream-track"
_JSON = [(b"content-type", b"application/json")]
_SSE = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class App:
    """The ASGI application of one worker."""

    def __init__(self, worker: Worker, parser: ToolParser, forward: ChatForwarder | None = None) -> None:
        """Answer chat completions by the worker's engine, or, if `forward` is given, by a server of its own."""
        self._worker = worker
        self._parser = parser
        self._forward = forward
        self._routes: dict[tuple[str, str], Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/score"): self._score,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/ready"): self._health,
            ("GET", "/metrics"): self._metrics,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        handler = self._routes.get((scope["method"], scope["path"]))
        if handler is None:
            error = RequestError(404, f"this worker has no {scope['method']} {scope['path']}")
            await _respond(send, error.status, error.body)
        else:
            await handler(scope, receive, send)

    async def _models(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        worker = self._worker
        facts = {"version": worker.version, "tracks": worker.tracks}
        models = [{"id": worker.model, "object": "model", "owned_by": "stepstream"} | facts]
        served = models if worker.version is not None else []
        await _respond(send, 200, orjson.dumps({"object": "list", "data": served}))

    async def _health(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        worker = self._worker
        state: dict[str, Any] = {"model": worker.model, "version": worker.version, "in_flight": worker.in_flight}
        state["tracks"] = worker.tracks
        if worker.version is None:
            state["message"] = f"waiting for a checkpoint of '{worker.model}'"
        await _respond(send, 200 if worker.version is not None else 503, orjson.dumps(state))

    async def _metrics(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        body = generate_latest() + (await self._forward.metrics() if self._forward is not None else b"")
        await _respond(send, 200, body, [(b"content-type", CONTENT_TYPE_LATEST.encode())])

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._generate if self._forward is None else self._relay
        await self._serve_counted(answer, scope, receive, send)

    async def _score(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve_counted(self._score_prompts, scope, receive, send)

    async def _serve_counted(
        self, answer: Callable[[Slot, Receive, Send], Awaitable[int]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        started = time.perf_counter()
        self._worker.in_flight += 1
        status = 500
        try:
            async with self._worker.request(_track(scope)) as slot:
                status = await answer(slot, receive, send)
        except RequestError as error:
            status = error.status
            await _respond(send, status, error.body)
        finally:
            self._worker.in_flight -= 1
            metrics.IN_FLIGHT.set(self._worker.in_flight)
            metrics.REQUESTS.labels(str(status)).inc()
            metrics.REQUEST_SECONDS.observe(time.perf_counter() - started)

    async def _generate(self, slot: Slot, receive: Receive, send: Send) -> int:
        request = read_request(await _body(receive))
        worker, tokenizer = self._worker, self._tokenizer_of(slot, request.model)
        try:
            prompt = build_prompt(request, tokenizer)
            if prompt.way is not None:
                metrics.PREFIXES.labels(request.model, prompt.way, prompt.reason or "").inc()
            prompt_ids = prompt.token_ids
            room = worker.max_length - len(prompt_ids)
            if room < 1:
                raise BadPromptError(f"the prompt has {len(prompt_ids)} tokens of at most {worker.max_length - 1}")
            generated = [
                slot.engine.generate(prompt_ids, request.sampling(room, tokenizer, number))
                for number in range(request.n)
            ]
            reply = self._respond_streamed if request.stream else self._respond_complete
            await reply(request, tokenizer, prompt, generated, send)
        except (TemplateError, BadPromptError) as error:
            raise RequestError(400, str(error), param="messages") from error
        except EngineError as error:
            raise RequestError(503, str(error)) from error
        return 200

    async def _relay(self, slot: Slot, receive: Receive, send: Send) -> int:
        assert self._forward is not None
        body = await _body(receive)
        if slot.version is None:
            raise RequestError(503, f"waiting for a checkpoint of '{self._worker.model}'")
        if self._worker.serves_adapters:
            body = _addressed(body, slot)
        return await self._forward(body, receive, send)

    async def _score_prompts(self, slot: Slot, receive: Receive, send: Send) -> int:
        request = score_api.read_score_request(await _body(receive))
        worker, tokenizer = self._worker, self._tokenizer_of(slot, request.model)
        try:
            prompts, tokens = request.prompt_ids(tokenizer), request.tokens(tokenizer)
            values, version = await slot.engine.score(prompts, tokens)
        except (TemplateError, BadPromptError) as error:
            raise RequestError(400, str(error), param="prompts") from error
        except NoValueError as error:
            raise RequestError(501, str(error), param="head") from error
        except EngineError as error:
            raise RequestError(503, str(error)) from error
        metrics.PROMPT_TOKENS.inc(sum(map(len, prompts)))
        await _respond(send, 200, score_api.score_reply(worker.model, version, values))
        return 200

    def _tokenizer_of(self, slot: Slot, model: str) -> ChatTokenizer:
        """Return the tokenizer of a slot.

        Raises:
            RequestError: 404, this worker serves another model; 503, it has no checkpoint yet.
        """
        worker = self._worker
        if model != worker.model:
            raise RequestError(
                404,
                f"this worker serves '{worker.model}', not '{model}'",
                param="model",
                code="model_not_found",
            )
        if slot.tokenizer is None:
            raise RequestError(503, f"waiting for a checkpoint of '{worker.model}'")
        return slot.tokenizer

    async def _respond_complete(
        self,
        request: ChatRequest,
        tokenizer: ChatTokenizer,
        prompt: Prompt,
        generated: Sequence[Generated],
        send: Send,
    ) -> None:
        answers = []
        count = 0
        for number, chunks in enumerate(await choices.collect(generated)):
            token_ids = chat_api.tokens_of(chunks)
            count += len(token_ids)
            text = StopTruncator(request.stop).add(tokenizer.text(token_ids), last=True)
            call = self._parser.parse(text, request.tool_names) if chunks[-1].finish_reason == "stop" else None
            answers.append(chat_api.complete_choice(request, tokenizer, number, chunks, text, call))
        _count(len(prompt.token_ids), count)
        await _respond(send, 200, chat_api.complete_reply(request, prompt, answers, count))

    async def _respond_streamed(
        self,
        request: ChatRequest,
        tokenizer: ChatTokenizer,
        prompt: Prompt,
        generated: Sequence[Generated],
        send: Send,
    ) -> None:
        head = chat_api.new_reply("chat.completion.chunk", request.model)
        replies = [StreamedReply(request, tokenizer, number, self._parser) for number in range(request.n)]
        started = False
        async with aclosing(choices.stream(generated)) as chunks:
            async for number, chunk in chunks:
                extra: dict[str, Any] = {}
                if not started:  # the first chunk proves that the engine accepted the prompt
                    await send({"type": "http.response.start", "status": 200, "headers": _SSE})
                    started, extra = True, dict(prompt.fields)
                    if request.return_token_ids:
                        extra["prompt_token_ids"] = prompt.token_ids
                event = chat_api.event(head | extra | {"choices": [replies[number].choice(chunk)]})
                await send({"type": "http.response.body", "body": event, "more_body": True})
        count = sum(reply.tokens for reply in replies)
        size = len(prompt.token_ids)
        _count(size, count)
        last = b""
        if request.include_usage:
            last = chat_api.event(head | {"choices": [], "usage": chat_api.usage(size, count)})
        await send({"type": "http.response.body", "body": last + chat_api.DONE})


class StreamedReply:
    """Writes one choice's part of a stream's events; holds back text that may become a tool call."""

    def __init__(self, request: ChatRequest, tokenizer: ChatTokenizer, number: int, parser: ToolParser) -> None:
        self._request, self._tokenizer, self._number = request, tokenizer, number
        self._parser = parser
        self._pieces = StreamedText(tokenizer)
        self._until = StopTruncator(request.stop)
        self._held_back = ""
        self._holding = True
        self._has_begun = False
        self.tokens = 0
        """Response tokens so far."""

    def choice(self, chunk: TokenChunk) -> dict[str, Any]:
        """Return the event's choice for one chunk."""
        request = self._request
        delta: dict[str, Any] = {}
        if not self._has_begun:
            self._has_begun, delta["role"] = True, "assistant"
        self.tokens += len(chunk.token_ids)
        call = self._add_content(chunk, delta)
        choice: dict[str, Any] = {
            "index": self._number,
            "delta": delta,
            "finish_reason": chat_api.finish_reason(chunk.finish_reason, call),
        }
        if request.return_token_ids:
            choice["token_ids"] = chunk.token_ids
        if request.logprobs:
            choice["logprobs"] = chat_api.logprobs(request, self._tokenizer, [chunk])
        if chunk.finish_reason is not None:
            choice |= chat_api.whole_response(chunk)
        return choice

    def _add_content(self, chunk: TokenChunk, delta: dict[str, Any]) -> Any:
        """Add the text or tool call that is certain now to `delta`; return the tool call, or None."""
        names = self._request.tool_names
        last = chunk.finish_reason is not None
        self._held_back += self._until.add(self._pieces.add(chunk.token_ids, last=last), last=last)
        if chunk.finish_reason == "stop" and self._holding:
            call = self._parser.parse(self._held_back, names)
            if call is not None:
                delta["tool_calls"] = chat_api.tool_calls(call, indexed=True)
                return call
        if self._holding and chunk.finish_reason is None:
            self._holding = self._parser.may_become_call(self._held_back, names)
        if not self._holding or chunk.finish_reason is not None:
            delta["content"], self._held_back = self._held_back, ""
        return None


def _addressed(body: bytes, slot: Slot) -> bytes:
    """Return a request for the slot's version: its field `model` may name the model or a version of it."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body  # the server refuses it
    name = fields.get("model") if isinstance(fields, dict) else None
    is_of_model = isinstance(name, str) and slot.model in (name, name.rpartition("@")[0])
    return orjson.dumps(fields | {"model": slot.served_name}) if is_of_model else body


def _track(scope: Scope) -> Track:
    """Return the track that a request names, by default `stable`.

    Raises:
        RequestError: 400, there is no such track.
    """
    for name, value in scope.get("headers", ()):
        if name == _TRACK_HEADER:
            for track in TRACKS:
                if value == track.encode():
                    return track
            known = " or ".join(TRACKS)
            raise RequestError(400, f"{_TRACK_HEADER.decode()} is {value.decode(errors='replace')}, not {known}")
    return "stable"


def _count(prompt: int, response: int) -> None:
    metrics.PROMPT_TOKENS.inc(prompt)
    metrics.RESPONSE_TOKENS.inc(response)


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(400, "the caller closed the connection")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*(headers or _JSON), length]})
    await send({"type": "http.response.body", "body": body})
