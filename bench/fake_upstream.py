"""Serve a model provider that answers at once, for the bench of the gateways.

Run it as `python bench/fake_upstream.py PORT`. Each request gets a chat completion of about one kilobyte; a stream gets
the same words in 20 events, written at once. On request it adds token ids, weight versions and logprobs: as OpenAI's
objects, or as plain numbers as Stepstream's inference workers send them to the gateway. It implements only the HTTP/1.1
that the benches use.
"""

import asyncio
import json
import sys
from typing import Any

import httptools
import uvloop

WORDS = "The parcel left the sorting centre this morning and should be with you within two working days. " * 6
CHUNKS = 20
PROMPT_TOKENS, TOKENS = 120, 114
VERSIONS = [{"version": 3, "start": 0, "end": TOKENS}]


def _logprobs(count: int, plain: bool) -> dict[str, object]:
    if plain:
        return {"values": [-0.6931471805599453] * count}
    token = {"token": " parcel", "logprob": -0.6931471805599453, "bytes": None, "top_logprobs": []}
    return {"content": [token] * count, "refusal": None}


def _completion(tokens: bool, plain: bool = False) -> bytes:
    message = {"role": "assistant", "content": WORDS, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "bench-model",
        "choices": [choice],
        "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS, "total_tokens": PROMPT_TOKENS + TOKENS},
        "system_fingerprint": "fp_bench",
    }
    if tokens:
        choice |= {"logprobs": _logprobs(TOKENS, plain), "token_ids": list(range(TOKENS)), "weight_versions": VERSIONS}
        body["prompt_token_ids"] = list(range(PROMPT_TOKENS))
    return json.dumps(body).encode()


def _events(tokens: bool, plain: bool = False) -> bytes:
    size, each = len(WORDS) // CHUNKS, TOKENS // (CHUNKS - 1)
    head = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "bench-model"}
    deltas = [{"content": WORDS[i * size : (i + 1) * size]} for i in range(CHUNKS - 1)]
    first, *choices, last = [{"index": 0, "delta": delta} for delta in [{"role": "assistant"}, *deltas, {}]]
    last["finish_reason"] = "stop"
    if tokens:
        for number, choice in enumerate(choices):
            choice |= {"logprobs": _logprobs(each, plain), "token_ids": list(range(number * each, (number + 1) * each))}
        last["weight_versions"] = VERSIONS
    events = [{**head, "choices": [{"finish_reason": None, **choice}]} for choice in [first, *choices, last]]
    if tokens:
        events[0]["prompt_token_ids"] = list(range(PROMPT_TOKENS))
    return "".join(f"data: {event}\n\n" for event in [*map(json.dumps, events), "[DONE]"]).encode()


def _response(kind: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


def _chunked(kind: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind
    parts = [event + b"\n\n" for event in body.split(b"\n\n") if event]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


ANSWERS = {
    (streams, tokens, plain): _chunked(b"text/event-stream", _events(tokens, plain))
    if streams
    else _response(b"application/json", _completion(tokens, plain))
    for streams in (False, True)
    for tokens in (False, True)
    for plain in (False, True)
}


class Provider(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        streams = b'"stream":true' in self._body or b'"stream": true' in self._body
        tokens = b'"return_token_ids":true' in self._body
        plain = b'"plain_logprobs":true' in self._body
        self._body = b""
        self._transport.write(ANSWERS[streams, tokens, plain])


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
