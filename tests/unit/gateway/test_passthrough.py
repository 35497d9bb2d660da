"""Requests that are no model calls reach their upstream; those that run a model are charged to their API key."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from api_key_records import key_grant, new_counts

from stepstream.services.gateway.api_keys import ApiKeys
from stepstream.services.gateway.http.client import Reply
from stepstream.services.gateway.key_usage import KeyCounts
from stepstream.services.gateway.passthrough import PassThrough
from stepstream.services.gateway.response_ids import AccountIds
from stepstream.services.gateway.worker_pool import Upstream
from stepstream.services.http_server import CONNECTION

TEXT = "a question that fills some tokens"


class Provider:
    """A provider of every model, with its upstreams; answers every request alike."""

    account_ids = AccountIds(b"operator's key")

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.workers: Any = SimpleNamespace(pool=SimpleNamespace(served_models=lambda: None))

    def for_model(self, model: str) -> Any:
        return self

    for_protocol = for_model

    def headers(self, *_: Any) -> Any:
        return []

    def admit(self, model: str) -> None:
        pass

    async def send(self, *_: Any) -> Reply:
        return Reply(200, [], self.answer, Upstream("u", in_flight=1))


def exchange(
    body: bytes,
    method: str = "POST",
    path: str = "/v1/embeddings",
    counts: KeyCounts | None = None,
    answer: bytes = b'{"input_tokens":9}',
) -> tuple[int, bytes]:
    """Send one request with a key of all paths; return the answer's status and body."""
    provider: Any = Provider(answer)
    counts = counts or new_counts()
    keys: Any = ApiKeys(cast(Any, {}), counts, required=False)
    keys.authorize = lambda *_: key_grant(paths=["*"])
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    connection = SimpleNamespace(disconnected=False, on_disconnect=None)
    scope = {"method": method, "headers": [], "query_string": b"", "extensions": {CONNECTION: connection}}
    asyncio.run(PassThrough(provider, keys, counts)(cast(Any, scope), receive, send, path, path))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(
    ("method", "path", "body", "charged"),
    [
        ("POST", "/v1/embeddings", {"model": "m", "input": TEXT}, True),
        ("POST", "/v1/messages/count_tokens", {"model": "m", "messages": [{"role": "user", "content": TEXT}]}, False),
        ("GET", "/v1/models/m", None, False),
    ],
)
def test_only_a_request_that_runs_a_model_spends_the_keys_budget(
    method: str, path: str, body: dict[str, Any] | None, charged: bool
) -> None:
    counts = new_counts()
    answer = exchange(b"" if body is None else orjson.dumps(body), method, path, counts)
    assert answer == (200, b'{"input_tokens":9}')
    assert (counts.used("ab12").tokens > 0) == charged


def test_a_request_that_the_gateway_cannot_write_is_refused_with_the_reason() -> None:
    status, body = exchange(b'{"model":"m","input":' + b"[" * 300 + b"]" * 300 + b"}")
    assert status == 400
    assert b"nested too deeply" in body


def test_a_reply_that_the_gateway_cannot_write_is_502() -> None:
    answer = b'{"id":"r1","object":"response","more":' + b"[" * 300 + b"]" * 300 + b"}"
    status, body = exchange(b"{}", path="/v1/responses/input_tokens", answer=answer)
    assert status == 502
    assert b"nested too deeply" in body
