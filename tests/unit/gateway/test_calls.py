"""Every call, even with malformed input, is answered to its end and recorded once, as a step that `govern` accepts."""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from api_key_records import key_grant, new_counts
from fold_harness import LocalCodec
from harness_records import HarnessRecords
from hypothesis import given
from hypothesis import strategies as st

from stepstream.config import ModelPriceSettings, load
from stepstream.core.prices import Prices
from stepstream.jobs.governance.validation import check_step
from stepstream.services.gateway.api_keys import ApiKeys
from stepstream.services.gateway.calls import CallHandler
from stepstream.services.gateway.context.carried_calls import CarriedCalls
from stepstream.services.gateway.context.encrypted_store import EncryptedStore
from stepstream.services.gateway.context.endings import EndingFile
from stepstream.services.gateway.context.saved_responses import SavedResponses
from stepstream.services.gateway.context.step_indices import StepIndexFile
from stepstream.services.gateway.grant import ANYTHING, Grant
from stepstream.services.gateway.harness import HarnessChooser
from stepstream.services.gateway.http.client import ConnectionLost, Reply
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import ModelProtocol
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.protocols.responses.protocol import RESPONSES
from stepstream.services.gateway.publisher import Event
from stepstream.services.gateway.tracks import TrackChooser
from stepstream.services.gateway.worker_pool import Upstream
from stepstream.services.http_server import CONNECTION

NO_FILES = StepIndexFile(), EndingFile()
RESPONSE_ID = "chatcmpl-0123456789abcdef"

ODD = [None, 0, -1, True, 1.5, "", "x", [], {}, ["x"], [None], {"a": 1}, [{"type": "text", "text": "a"}]]
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOKENS = {"token_ids": [3], "logprobs": {"content": [{"token": "a", "logprob": -1.0}]}}
VERSIONS = [{"version": 1, "start": 0, "end": 1}]
MESSAGE = {"role": "assistant", "content": "a", "tool_calls": [CALL]}
ITEM = {"type": "message", "id": 24 * "m", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
BLOCK = {"type": "text", "text": "a"}
QUESTION = {"role": "user", "content": "q"}
REQUESTS: dict[str, dict[str, Any]] = {
    "chat": {"messages": [QUESTION, MESSAGE, {"role": "tool", "tool_call_id": "c", "content": "4"}]},
    "responses": {"input": [QUESTION, ITEM, {"type": "item_reference", "id": 24 * "m"}], "instructions": "i"},
    "anthropic": {"system": "s", "max_tokens": 9, "messages": [{"role": "user", "content": [BLOCK]}]},
}
LAST = {"finish_reason": "stop", "weight_versions": VERSIONS}
REPLIES: dict[str, dict[str, Any]] = {
    "chat": {
        "id": "i",
        "model": "m",
        "prompt_token_ids": [1],
        "choices": [{"index": 0, "message": MESSAGE, **LAST, **TOKENS}],
        "usage": {"prompt_tokens": 1},
    },
    "responses": {"id": "resp_1", "status": "completed", "model": "m", "output": [ITEM], "usage": {"input_tokens": 1}},
    "anthropic": {"type": "message", "model": "m", "content": [BLOCK], "stop_reason": "end_turn", "usage": {}},
}
EVENTS: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"id": "i", "model": "m", "prompt_token_ids": [1], "choices": [{"index": 0, "delta": MESSAGE, **TOKENS}]},
        {"choices": [{"index": 0, "delta": {}, **LAST}], "usage": {"prompt_tokens": 1}},
    ],
    "responses": [
        {"type": "response.output_item.added", "output_index": 0, "item": ITEM},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "a"},
        {"type": "response.completed", "response": REPLIES["responses"]},
    ],
    "anthropic": [
        {"type": "message_start", "message": REPLIES["anthropic"]},
        {"type": "content_block_start", "index": 0, "content_block": BLOCK},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    ],
}
CODEC = LocalCodec()


def corrupt(value: Any, random: Random) -> Any:
    """Replace some parts of a value by odd ones."""
    if random.random() < 0.06:
        return random.choice(ODD)
    if isinstance(value, dict):
        return {name: corrupt(part, random) for name, part in value.items()}
    return [corrupt(part, random) for part in value] if isinstance(value, list) else value


class Stub:
    """Everything around the handler: an upstream with odd answers, API keys, and a publisher."""

    name, gives_tokens, plain_logprobs, fallbacks, account_ids = "odd", True, False, (), None

    def __init__(self, random: Random, speaks: str) -> None:
        self.random, self.speaks = random, (speaks,)
        self.steps: list[Any] = []
        self.chunks: list[bytes] = []
        self.sent: list[Any] = []

    def for_model(self, model: str) -> Any:
        return self

    def authorize(self, credentials: Any, scope: str) -> Grant:
        return ANYTHING

    def check_model(self, grant: Grant, model: str) -> None:
        pass

    def headers(self, *_: Any) -> Any:
        return []

    def admit(self, model: str) -> None:
        pass

    async def send(self, method: str, path: str, body: bytes, headers: Any, route: Any) -> Reply:
        protocol = self.speaks[0]
        upstream = Upstream("u", in_flight=1)
        if orjson.loads(body).get("stream") is True:
            events = [corrupt(event, self.random) for event in EVENTS[protocol]]
            self.chunks = [b"data: %b\n\n" % orjson.dumps(event) for event in events]
            stub: Any = self
            return Reply(200, [], self.chunks.pop(0), upstream, stub)
        return Reply(200, [], orjson.dumps(corrupt(REPLIES[protocol], self.random)), upstream)

    async def read(self) -> bytes:
        if not self.chunks and self.random.random() < 0.3:
            raise ConnectionLost("gone")
        return self.chunks.pop(0) if self.chunks else b""

    @property
    def complete(self) -> bool:
        return not self.chunks and self.random.random() < 0.5  # the end may come with the last bytes

    def close(self) -> None:
        pass

    def publish_all(self, events: Sequence[Event]) -> None:
        for event in events:
            CODEC.encode(event.topic, event.record)
            check_step(event.record)
            self.steps.append(event.record)


def call(
    stub: Any,
    saved_responses: SavedResponses,
    protocol: ModelProtocol,
    request: dict[str, Any],
    carried: CarriedCalls | None = None,
    harnesses: HarnessChooser | None = None,
) -> None:
    """Handle one call, in trajectory `t`."""
    body = json.dumps(request | {"model": "m"}).encode()  # also writes what orjson only reads
    handler = CallHandler(
        load({}).gateway,
        stub,
        stub,
        stub,
        Metrics(),
        "test/1",
        *NO_FILES,
        carried or CarriedCalls(),
        saved_responses,
        TrackChooser({}),
        harnesses or HarnessChooser(HarnessRecords()),
        new_counts(),
    )

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        stub.sent.append(message)

    scope = {
        "headers": [],
        "query_string": b"",
        "extensions": {CONNECTION: SimpleNamespace(disconnected=False, on_disconnect=None)},
    }
    asyncio.run(handler(cast(Any, scope), receive, send, protocol, "t"))


@pytest.fixture
def store() -> Iterator[EncryptedStore]:
    with closing(EncryptedStore(None, 100_000, 60.0)) as opened:
        yield opened


@given(st.randoms(use_true_random=False), st.booleans(), st.booleans())
@pytest.mark.parametrize("protocol", [CHAT, RESPONSES, ANTHROPIC], ids=lambda protocol: protocol.name)
def test_a_call_with_any_input_is_answered_and_recorded_once(
    protocol: ModelProtocol, random: Random, native: bool, stream: bool
) -> None:
    stub: Any = Stub(random, protocol.name if native else "chat")
    request = {name: corrupt(part, random) for name, part in REQUESTS[protocol.name].items()}
    with closing(EncryptedStore(None, 100_000, 60.0)) as store:
        call(stub, SavedResponses(store), protocol, request | {"stream": stream})
    assert not stub.sent[-1].get("more_body")
    refused = stub.sent[0]["status"] == 400  # it cannot be translated
    assert [step["trajectory_id"] for step in stub.steps].count("t") == (0 if refused else 1)
    assert not (refused and native)


def test_a_continued_conversation_is_saved_with_all_its_participants(store: EncryptedStore) -> None:
    stub: Any = Stub(cast(Random, SimpleNamespace(random=lambda: 1.0)), "chat")
    saved_responses = SavedResponses(store)
    previous: dict[str, Any] = {}
    for user in ("ada", "bob"):
        call(stub, saved_responses, RESPONSES, {"input": user, "user": user} | previous)
        reply = orjson.loads(b"".join(message.get("body", b"") for message in stub.sent))
        previous = {"previous_response_id": reply["id"]}
        stub.sent.clear()
    history = saved_responses.get("default", reply["id"])
    assert history is not None
    assert list(history.participants) == ["bob", "ada"]
    assert [step["user"] for step in stub.steps] == ["ada", "bob"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_caller_forbids_to_store_is_not_stored(store: EncryptedStore, stream: bool) -> None:
    stub: Any = Stub(cast(Random, SimpleNamespace(random=lambda: 0.4)), "chat")
    saved: list[str] = []
    store.put = lambda name, value: saved.append(name)  # type: ignore[method-assign]
    call(stub, SavedResponses(store), RESPONSES, {"input": "q", "store": False, "stream": stream})
    assert saved == []
    call(stub, SavedResponses(store), RESPONSES, {"input": "q", "stream": stream})
    assert saved


@pytest.mark.parametrize("protocol", [CHAT, RESPONSES, ANTHROPIC], ids=lambda protocol: protocol.name)
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_named_by_the_response_id_that_the_caller_got(
    protocol: ModelProtocol,
    native: bool,
    stream: bool,
    store: EncryptedStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for reply in (*REPLIES.values(), EVENTS["chat"][0]):
        monkeypatch.setitem(reply, "id", RESPONSE_ID)
    second = [{"index": 1, "message": MESSAGE, "delta": MESSAGE, "finish_reason": "stop"}]
    monkeypatch.setitem(REPLIES["chat"], "choices", REPLIES["chat"]["choices"] + second)
    monkeypatch.setitem(EVENTS["chat"][1], "choices", EVENTS["chat"][1]["choices"] + second)
    stub: Any = Stub(cast(Random, SimpleNamespace(random=lambda: 0.4)), protocol.name if native else "chat")
    with closing(CarriedCalls(tmp_path)) as carried:
        call(stub, SavedResponses(store), protocol, REQUESTS[protocol.name] | {"input": "q", "stream": stream}, carried)
        received = b"".join(message.get("body", b"") for message in stub.sent).decode()
        [name] = set(re.findall(r'"id":"((?:resp_|chatcmpl-)[^"]+)"', received))
        *alternatives, step = stub.steps
        assert carried.find("default", [f"response:{name}"]) == ("t", step["step_index"])
    assert step["call_ids"] == [f"response:{name}"]
    assert [each["call_ids"] for each in alternatives] == ([[]] if stub.speaks == ("chat",) else [])


@pytest.mark.parametrize(("priced", "status"), [("m", 403), ("*", 200)])
def test_a_budget_of_cost_also_needs_a_price_of_the_harness_model(
    priced: str, status: int, store: EncryptedStore
) -> None:
    stub: Any = Stub(cast(Random, SimpleNamespace(random=lambda: 0.4)), "chat")
    counts = new_counts(prices=Prices([ModelPriceSettings(model=priced, prompt_usd=1.0, response_usd=1.0)]))
    stub.check_model = ApiKeys(cast(Any, {}), counts, required=False).check_model
    stub.authorize = lambda *_: key_grant(tenant="t", cost_budget_usd=1.0, applies_harness=True)
    records = HarnessRecords()
    harnesses = HarnessChooser(records)
    records.set("v1", "stable", 1, agent=load({}).gateway.agent, model="expensive")
    call(stub, SavedResponses(store), CHAT, REQUESTS["chat"], harnesses=harnesses)
    assert stub.sent[0]["status"] == status
    assert (b"'expensive' has no price" in stub.sent[1]["body"]) == (status == 403)


@pytest.mark.parametrize("protocol", [RESPONSES, ANTHROPIC], ids=lambda protocol: protocol.name)
@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"choices":[{}]}', b'{"choices":[{"message":3}]}'])
def test_an_unreadable_answer_is_502_in_a_translation(
    protocol: ModelProtocol, body: bytes, store: EncryptedStore
) -> None:
    stub: Any = Stub(Random(0), "chat")

    async def send(*_: Any) -> Reply:
        return Reply(200, [(b"content-type", b"text/html"), (b"content-encoding", b"gzip")], body, Upstream("u"))

    stub.send = send
    call(stub, SavedResponses(store), protocol, REQUESTS[protocol.name] | {"input": "q"})
    assert stub.sent[0]["status"] == 502
    headers = dict(stub.sent[0]["headers"])
    assert (headers[b"content-type"], headers.get(b"content-encoding")) == (b"application/json", None)
    assert "cannot be read" in orjson.loads(stub.sent[1]["body"])["error"]["message"]
    assert [step["error"] for step in stub.steps] == ["malformed_response"]


@pytest.mark.parametrize("protocol", [CHAT, RESPONSES, ANTHROPIC], ids=lambda protocol: protocol.name)
@pytest.mark.parametrize("native", [False, True], ids=["translated", "native"])
def test_a_request_that_the_gateway_cannot_write_is_refused_with_the_reason(
    protocol: ModelProtocol, native: bool, store: EncryptedStore
) -> None:
    stub: Any = Stub(Random(0), protocol.name if native else "chat")
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(300):
        schema = {"properties": schema}
    tool = {"name": "f", "parameters": schema, "input_schema": schema}
    tools = [tool | {"type": "custom" if protocol is ANTHROPIC else "function", "function": tool}]
    call(stub, SavedResponses(store), protocol, REQUESTS[protocol.name] | {"input": "q", "tools": tools})
    assert stub.sent[0]["status"] == 400
    assert "nested too deeply" in orjson.loads(stub.sent[1]["body"])["error"]["message"]
    assert stub.steps == []
