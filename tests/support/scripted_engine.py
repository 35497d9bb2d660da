"""Serve a worker's application over a scripted engine."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from stepstream.services.inference.app import App
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import Engine, SamplingMask, SamplingParams, TokenChunk, VersionSpan
from stepstream.services.inference.tool_parsers import CallLine
from stepstream.services.inference.worker import Worker

EOS = 2
NEVER = 10**6
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("get", "calc")]
REQUEST: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "q:a+c"}],
    "tools": TOOLS,
    "logprobs": True,
    "return_token_ids": True,
}


class ScriptedEngine(Engine):
    """Answers every request with the same tokens, half of them by version 3 and half by version 4."""

    def __init__(self) -> None:
        super().__init__()
        self.response: list[int] = []
        self.fault: Exception | None = None
        self.requests: list[tuple[Sequence[int], SamplingParams]] = []

    @property
    def version(self) -> int | None:
        return 4

    async def load(self, folder: Path, version: int) -> None:
        raise NotImplementedError

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[TokenChunk, None]:
        self.requests.append((prompt_ids, params))
        if self.fault is not None:
            raise self.fault
        stops = params.stops
        end = 1 + next((at for at, token in enumerate(self.response) if stops and stops.is_stopped_by(token)), NEVER)
        response = self.response[:end]
        half = len(response) // 2
        spans = [VersionSpan(3, 0, half), VersionSpan(4, half, len(response))]
        reason: Any = "stop" if response[-1] == EOS or end <= NEVER else "length"
        mask = SamplingMask([1] * len(response), [*response]) if params.mask_ids else None
        if params.stream:
            for token in response[:-1]:
                yield TokenChunk([token], [-0.5])
            yield TokenChunk(response[-1:], [-0.5], reason, spans, mask)
        else:
            yield TokenChunk(response, [-0.5] * len(response), reason, spans, mask)

    async def close(self) -> None:
        raise NotImplementedError


@dataclass
class Served:
    app: App
    worker: Worker
    engine: ScriptedEngine
    tokenizer: ChatTokenizer

    def script(self, text: str, *, ended: bool = True) -> list[int]:
        """Script the engine; returns the tokens."""
        ids = self.tokenizer.prompt_ids([{"role": "user", "content": text}], [])[1:-1]
        self.engine.response = [*ids, EOS] if ended else ids
        return self.engine.response

    async def call(
        self, method: str, path: str, body: Any = None, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> tuple[int, bytes]:
        """One HTTP request."""
        raw = body if isinstance(body, bytes) else orjson.dumps(body)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": raw}

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)

    async def chat(self, **fields: Any) -> tuple[int, dict[str, Any]]:
        status, body = await self.call("POST", "/v1/chat/completions", REQUEST | fields)
        return status, orjson.loads(body)

    async def stream(self, **fields: Any) -> list[dict[str, Any]]:
        status, body = await self.call("POST", "/v1/chat/completions", REQUEST | {"stream": True} | fields)
        assert status == 200
        *events, done, _ = body.split(b"\n\n")
        assert done == b"data: [DONE]"
        return [orjson.loads(event.removeprefix(b"data: ")) for event in events]


def serve_scripted(tokenizer: ChatTokenizer) -> Served:
    """Return a worker of the model `demo` with a scripted engine."""
    engine = ScriptedEngine()
    worker = Worker("demo", engine, 64)
    worker.tokenizer = tokenizer
    return Served(App(worker, CallLine()), worker, engine, tokenizer)
