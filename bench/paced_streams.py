"""Serve and read model streams at an even pace, for the bench of the gateway's edge.

`python bench/paced_streams.py serve PORT` streams one token each `PACE_S`, for as long as the caller listens.
`python bench/paced_streams.py read PORT STREAMS SECONDS OUTCOME.json KEY` reads as many streams of a gateway at once
and writes the times between two tokens, in ms, each with the second of the monotonic clock at which it ended.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httptools
import uvloop

PACE_S = 0.1
MARK = b'"content"'
"""Once in each token's event."""


def event(number: int) -> bytes:
    """Return the chunk of one token."""
    choice = {"index": 0, "delta": {"content": f" {number}"}, "finish_reason": None, "token_ids": [number]}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench-model"}
    data = b"data: %b\n\n" % json.dumps(chunk | {"choices": [choice | {"logprobs": {"values": [-0.7]}}]}).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


class PacedUpstream(asyncio.Protocol):
    """One connection of the upstream; a request begins a stream that ends with the connection."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._transport.write(head)
        self._number = 0
        self._due = asyncio.get_running_loop().time()
        self._send()

    def _send(self) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(event(self._number))
        self._number += 1
        self._due += PACE_S
        asyncio.get_running_loop().call_at(self._due, self._send)


async def serve(port: int) -> None:
    """Serve until the process ends."""
    server = await asyncio.get_running_loop().create_server(PacedUpstream, "127.0.0.1", port)
    await server.serve_forever()


async def read(port: int, streams: int, seconds: float, key: str) -> list[tuple[float, float]]:
    """Return the gaps of all streams, after each stream's first second."""
    gaps: list[tuple[float, float]] = []

    async def one(number: int) -> None:
        await asyncio.sleep(number * PACE_S / streams)  # the tokens of all streams are spread evenly
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "go"}]}).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b" % (key.encode(), len(body), body)
        )
        began = last = time.monotonic()
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"a stream got {status.decode()}")
        while last < began + seconds:
            data = await reader.read(65536)
            if not data:
                raise SystemExit("a stream ended")
            now = time.monotonic()
            for _ in range(data.count(MARK)):  # two tokens at once: the second had no gap of its own
                if now > began + 1.0:
                    gaps.append((now, (now - last) * 1000.0))
                last = now
        writer.close()

    await asyncio.gather(*(one(number) for number in range(streams)))
    return gaps


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        uvloop.run(serve(int(sys.argv[2])))
    else:
        port, streams, seconds, outcome, key = sys.argv[2:]
        gaps = uvloop.run(read(int(port), int(streams), float(seconds), key))
        Path(outcome).write_text(json.dumps(gaps))
