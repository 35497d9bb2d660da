"""Export spans of agents' runs over OTLP/HTTP, each batch after the acknowledgement of the last.

Run it as `python bench/otlp_load.py LOAD.json`, which has the fields of `Load`. It prints one line of JSON: number and
time in seconds of each acknowledged batch, and the number of failed requests. A closed connection ends its exports.
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
MARK = b"\xf5\xf6\xf7\xf8"  # not UTF-8, so it is unique in the body
CONNECTIONS = 8


@dataclass
class Load:
    """Load of one run."""

    ports: list[int]
    """Ports of the server's processes; connections are spread over them."""
    seconds: float
    first: int
    """Number of the first batch; ids contain batch numbers."""
    resource: dict[str, str]


def trace_id(number: int, run: int) -> bytes:
    """Return the trace id of one run of a batch."""
    return number.to_bytes(4, "big") + b"trace-id" + run.to_bytes(4, "big")


def span_id(number: int, run: int, call: int) -> bytes:
    """Return the span id of one call of a run; call 0 is the agent."""
    return number.to_bytes(4, "big") + (run * 16 + call).to_bytes(4, "big")


def body(resource: dict[str, str]) -> bytes:
    """Return a batch of 100 spans, 80 of them model calls of about 1.4 kB; `MARK` replaces its number."""
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
    text = "Where is my order 4711? It was to arrive on Monday, and the tracking page has not changed since. "
    prompt = [
        {"role": "system", "parts": [{"type": "text", "content": "You help customers with their orders."}]},
        {"role": "user", "parts": [{"type": "text", "content": f"{text * 3} ({call})"}]},
    ]
    tool = {"type": "tool_call", "id": f"call_{call}", "name": "lookup", "arguments": {"order": 4711}}
    response = [
        {"role": "assistant", "parts": [{"type": "text", "content": text}, tool], "finish_reason": "tool_calls"}
    ]
    for name, value in {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo-2026",
        "gen_ai.response.id": f"chatcmpl-{run}-{call}",
        "server.address": "api.example.com",
        "gen_ai.input.messages": json.dumps(prompt),
        "gen_ai.output.messages": json.dumps(response),
    }.items():
        span.attributes.add(key=name).value.string_value = value
    for name, size in {"gen_ai.usage.input_tokens": 123, "gen_ai.usage.output_tokens": 45, "server.port": 443}.items():
        span.attributes.add(key=name).value.int_value = size
    span.attributes.add(key="gen_ai.request.temperature").value.double_value = 0.7
    reasons = span.attributes.add(key="gen_ai.response.finish_reasons").value.array_value
    reasons.values.add().string_value = "tool_calls"


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._done: asyncio.Future[bool | None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def post(self, payload: bytes) -> bool | None:
        """Return True if the batch was acknowledged; None if the connection is closed."""
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
        success = b" 200 " in self._buffer[:20]
        self._buffer = b""
        if not self._done.done():
            self._done.set_result(success)


async def run(load: Load) -> dict[str, object]:
    """Export until the time is over or the connections are closed; return the outcome."""
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
            success = await connection.post(template.replace(MARK, number.to_bytes(4, "big")))
            if success is None:
                return
            if success:
                acknowledged.append((number, time.monotonic()))
            else:
                failed += 1

    await asyncio.gather(*(exporter(load.ports[index % len(load.ports)]) for index in range(CONNECTIONS)))
    return {"acknowledged": acknowledged, "failed": failed, "bytes": len(template)}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(run(Load(**json.loads(Path(sys.argv[1]).read_text()))))))
