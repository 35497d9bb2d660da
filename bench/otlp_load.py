"""Exports spans of agents' runs over OTLP/HTTP as fast as they are acknowledged.

Run it as `python bench/otlp_load.py LOAD.json`, which holds the fields of `Load`. Prints one line of JSON: for each
acknowledged batch its number and the second it was answered, and how many requests failed. A server that
goes away ends the run.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import uvloop
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

RUNS_OF_BATCH = 20
CALLS_OF_RUN = 4
SPANS = RUNS_OF_BATCH * (CALLS_OF_RUN + 1)
MARK = b"\xf5\xf6\xf7\xf8"  # no UTF-8, so it stands nowhere else
CONNECTIONS = 8


@dataclass
class Load:
    """What to do."""

    ports: list[int]
    """Of the server's processes; connections are spread over them."""
    seconds: float
    first: int
    """Number of the first batch; numbers make ids."""
    resource: dict[str, str]


def trace_id(number: int, run: int) -> bytes:
    """Trace of one run of a batch."""
    return number.to_bytes(4, "big") + b"trace-id" + run.to_bytes(4, "big")


def span_id(number: int, run: int, call: int) -> bytes:
    """Span of one call of a run; call 0 is the agent."""
    return number.to_bytes(4, "big") + (run * 16 + call).to_bytes(4, "big")


def body(resource: dict[str, str]) -> bytes:
    """A batch of 100 spans, 80 of them model calls of about 1.4 kB; `MARK` stands for its number."""
    number = int.from_bytes(MARK, "big")
    request = ExportTraceServiceRequest()
    part = request.resource_spans.add()
    for name, value in {"service.name": "order-agent", **resource}.items():
        part.resource.attributes.add(key=name).value.string_value = value
    scope = part.scope_spans.add()
    scope.scope.name = "opentelemetry.instrumentation.openai_v2"
    for run in range(RUNS_OF_BATCH):
        start = time.time_ns() - 10**10
        for call in range(1, CALLS_OF_RUN + 1):
            _call(scope.spans.add(), number, run, call, start + call * 10**9)
        agent = scope.spans.add(trace_id=trace_id(number, run), span_id=span_id(number, run, 0), name="invoke_agent")
        agent.start_time_unix_nano, agent.end_time_unix_nano = start, start + 6 * 10**9
        agent.attributes.add(key="gen_ai.operation.name").value.string_value = "invoke_agent"
        agent.attributes.add(key="gen_ai.agent.name").value.string_value = "order-agent"
    return bytes(request.SerializeToString())


def _call(span: Span, number: int, run: int, call: int, start: int) -> None:
    span.trace_id, span.span_id = trace_id(number, run), span_id(number, run, call)
    span.parent_span_id = span_id(number, run, 0)
    span.name, span.kind = "chat demo", Span.SPAN_KIND_CLIENT
    span.start_time_unix_nano, span.end_time_unix_nano = start, start + 8 * 10**8
    said = "Where is my order 4711? It was to arrive on Monday, and the tracking page has not changed since. "
    asked = [
        {"role": "system", "parts": [{"type": "text", "content": "You help customers with their orders."}]},
        {"role": "user", "parts": [{"type": "text", "content": f"{said * 3} ({call})"}]},
    ]
    tool = {"type": "tool_call", "id": f"call_{call}", "name": "lookup", "arguments": {"order": 4711}}
    answered = [
        {"role": "assistant", "parts": [{"type": "text", "content": said}, tool], "finish_reason": "tool_calls"}
    ]
    for name, value in {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo-2026",
        "gen_ai.response.id": f"chatcmpl-{run}-{call}",
        "server.address": "api.example.com",
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps(answered),
    }.items():
        span.attributes.add(key=name).value.string_value = value
    for name, size in {"gen_ai.usage.input_tokens": 123, "gen_ai.usage.output_tokens": 45, "server.port": 443}.items():
        span.attributes.add(key=name).value.int_value = size
    span.attributes.add(key="gen_ai.request.temperature").value.double_value = 0.7
    reasons = span.attributes.add(key="gen_ai.response.finish_reasons").value.array_value
    reasons.values.add().string_value = "tool_calls"


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._done: asyncio.Future[bool | None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def post(self, payload: bytes) -> bool | None:
        """Whether it was acknowledged; None: the server is gone."""
        if self._transport.is_closing():
            return None
        self._done = asyncio.get_running_loop().create_future()
        head = b"POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\n"
        self._transport.write(head + b"content-length: %d\r\n\r\n" % len(payload) + payload)
        return await self._done

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._done is None:
            return
        head = self._buffer[:end].lower()
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        if len(self._buffer) < end + 4 + length:
            return
        well = b" 200 " in self._buffer[:20]
        self._buffer = b""
        if not self._done.done():
            self._done.set_result(well)


async def run(load: Load) -> dict[str, object]:
    """Exports until the time is over or the server is gone."""
    template = body(load.resource)
    loop = asyncio.get_running_loop()
    numbers = count(load.first)
    acknowledged: list[tuple[int, float]] = []
    failed = 0
    began = time.monotonic()  # the same clock in all processes

    async def exporter(port: int) -> None:
        nonlocal failed
        connection: Connection
        _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
        while time.monotonic() < began + load.seconds:
            number = next(numbers)
            well = await connection.post(template.replace(MARK, number.to_bytes(4, "big")))
            if well is None:
                return
            if well:
                acknowledged.append((number, time.monotonic()))
            else:
                failed += 1

    await asyncio.gather(*(exporter(load.ports[place % len(load.ports)]) for place in range(CONNECTIONS)))
    return {"acknowledged": acknowledged, "failed": failed, "bytes": len(template)}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(run(Load(**json.loads(Path(sys.argv[1]).read_text()))))))
