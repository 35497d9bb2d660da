"""Call a chat-completions endpoint at full speed or at a pace, and record the latencies.

Run it as `python bench/http_load.py LOAD.json OUTCOME.json`; LOAD has the fields of `Load`. OUTCOME gets the number of
calls, the failures among the counted calls, the seconds of counting, and the latency of each success in ms.
"""

import asyncio
import json
import sys
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

CALLS_OF_ONE_TRAJECTORY = 10
PROMPT = "Where is my order 4711? It was to arrive on Monday, and the tracking page has not changed since. " * 5


@dataclass
class Load:
    """Load of one run."""

    port: int
    stream: bool
    connections: int
    seconds: float
    """Seconds in which new calls begin; calls that begin in the first `warm_s` seconds are not counted."""
    warm_s: float
    per_s: float
    """Calls begun per second; 0: each connection calls again after its answer."""
    headers: dict[str, str]


def body(stream: bool) -> bytes:
    """Return a request of about one kilobyte as an agent with a tool sends it; half of it is the conversation."""
    messages = [
        {"role": "system", "content": "You help customers with their orders."},
        {"role": "user", "content": PROMPT},
    ]
    parameters = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    function = {"name": "order_status", "description": "Where an order is, by its number.", "parameters": parameters}
    request = {
        "model": "bench-model",
        "messages": messages,
        "tools": [{"type": "function", "function": function}],
        "user": "customer-4711",
        "temperature": 0.7,
        "max_tokens": 256,
    }
    return json.dumps(request | ({"stream": True} if stream else {})).encode()


class Connection(asyncio.Protocol):
    """One connection; one call at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._payload = body(load.stream)
        self._buffer = b""
        self._done: asyncio.Future[bool] | None = None
        self._calls = 0
        self._trajectory = ""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(False)

    @property
    def is_closed(self) -> bool:
        """True if the server closed it; some do after seconds without a call."""
        return bool(self._transport.is_closing())

    async def call(self) -> bool:
        """Make one call; return True for an answer with status 200."""
        if self._calls % CALLS_OF_ONE_TRAJECTORY == 0:
            self._trajectory = uuid.uuid4().hex
        self._calls += 1
        headers = self._load.headers | {"x-stepstream-trajectory": self._trajectory}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n%b\r\n%b" % (len(self._payload), head.encode(), self._payload)
        )
        return await self._done

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._done is None:
            return
        head = self._buffer[:end].lower()
        if b"transfer-encoding: chunked" in head:
            if not self._buffer.endswith(b"0\r\n\r\n"):
                return
        else:
            length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            if len(self._buffer) < end + 4 + length:
                return
        success = b" 200 " in self._buffer[:20]
        self._buffer = b""
        done, self._done = self._done, None
        if not done.done():
            done.set_result(success)


async def run(load: Load) -> dict[str, object]:
    """Make the calls; return the outcome."""
    loop = asyncio.get_running_loop()

    async def connect() -> Connection:
        return (await loop.create_connection(lambda: Connection(load), "127.0.0.1", load.port))[1]

    connections = [await connect() for _ in range(load.connections)]
    latencies: list[float] = []
    calls = failed = 0
    began = time.perf_counter()
    counted_from = began + load.warm_s

    async def one(connection: Connection, at: float) -> None:
        nonlocal calls, failed
        calls += 1
        success = await connection.call()
        now = time.perf_counter()
        if at < counted_from:
            return
        if success:
            latencies.append((now - at) * 1000)
        else:
            failed += 1

    async def repeat(connection: Connection) -> None:
        while (at := time.perf_counter()) < began + load.seconds:
            await one(connection, at)

    async def call_at_pace() -> None:
        free = list(connections)
        running = set()

        async def call_due(at: float) -> None:
            # A server that falls behind gets more connections, as from independent callers.
            connection = free.pop() if free else await connect()
            if connection.is_closed:
                connection = await connect()
            await one(connection, at)
            free.append(connection)

        for number in range(int(load.seconds * load.per_s)):
            due = began + number / load.per_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            # The latency counts from the due time, so a late start of the client counts too.
            task = asyncio.create_task(call_due(due))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    if load.per_s:
        await call_at_pace()
    else:
        await asyncio.gather(*(repeat(connection) for connection in connections))
    return {"calls": calls, "failed": failed, "seconds": time.perf_counter() - counted_from, "latencies_ms": latencies}


def command(load: Load, folder: Path) -> tuple[list[str], Path]:
    """Return the command line of a load process, and the file that it writes its outcome to."""
    file, outcome = folder / f"load-{uuid.uuid4().hex}.json", folder / f"outcome-{uuid.uuid4().hex}.json"
    file.write_text(json.dumps(asdict(load)))
    return [sys.executable, __file__, str(file), str(outcome)], outcome


if __name__ == "__main__":
    outcome = uvloop.run(run(Load(**json.loads(Path(sys.argv[1]).read_text()))))
    # A file, since a pipe once lost part of half a megabyte.
    Path(sys.argv[2]).write_text(json.dumps(outcome))
