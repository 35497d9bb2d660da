"""A model provider that answers at once, as fast as one Python process can: what the gateways are measured against.

Run it as `python bench/fake_upstream.py PORT`. Each request gets a chat completion of about one kilobyte, or, where it
asks for a stream, the same words in 20 events written at once. It speaks just enough HTTP/1.1 for that.
"""

import asyncio
import json
import sys

import httptools
import uvloop

WORDS = "The parcel left the sorting centre this morning and should be with you within two working days. " * 6
CHUNKS = 20


def _completion() -> bytes:
    message = {"role": "assistant", "content": WORDS, "refusal": None}
    body = {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "bench-model",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 120, "completion_tokens": 110, "total_tokens": 230},
        "system_fingerprint": "fp_bench",
    }
    return json.dumps(body).encode()


def _events() -> bytes:
    size = len(WORDS) // CHUNKS
    head = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "bench-model"}
    deltas = [{"content": WORDS[i * size : (i + 1) * size]} for i in range(CHUNKS - 1)]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in [{"role": "assistant"}, *deltas]]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    events = [json.dumps({**head, "choices": [choice]}) for choice in choices]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


def _response(kind: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


def _chunked(kind: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind
    parts = [event + b"\n\n" for event in body.split(b"\n\n") if event]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


WHOLE = _response(b"application/json", _completion())
STREAM = _chunked(b"text/event-stream", _events())


class Provider(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        streams = b'"stream":true' in self._body or b'"stream": true' in self._body
        self._body = b""
        self._transport.write(STREAM if streams else WHOLE)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
