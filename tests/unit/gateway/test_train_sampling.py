"""Calls that may be trained on are sampled from the whole softmax, marked, or rejected, as the setting says."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from api_key_records import new_counts
from harness_records import HarnessRecords

from stepstream.config import load
from stepstream.services.gateway.calls import CallHandler
from stepstream.services.gateway.context.carried_calls import CarriedCalls
from stepstream.services.gateway.context.encrypted_store import EncryptedStore
from stepstream.services.gateway.context.endings import EndingFile
from stepstream.services.gateway.context.saved_responses import SavedResponses
from stepstream.services.gateway.context.step_indices import StepIndexFile
from stepstream.services.gateway.errors import RestrictedSampling
from stepstream.services.gateway.grant import ANYTHING, Grant
from stepstream.services.gateway.harness import HarnessChooser
from stepstream.services.gateway.http.client import Reply
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.publisher import Event
from stepstream.services.gateway.tracks import TrackChooser
from stepstream.services.gateway.train_sampling import apply_train_sampling
from stepstream.services.gateway.worker_pool import Upstream
from stepstream.services.http_server import CONNECTION

NO_FILES = StepIndexFile(), EndingFile(), CarriedCalls()

TRUNCATED = {"model": "m", "temperature": 0.7, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "presence_penalty": 1}


QUESTION = {"max_tokens": 9, "messages": [{"role": "user", "content": "q"}]}
MASK = {"counts": [2], "token_ids": [2, 5]}
TOKENS: dict[str, Any] = {
    "token_ids": [2],
    "logprobs": {"values": [-0.5]},
    "weight_versions": [{"version": 3, "start": 0, "end": 1}],
    "sampling_mask": MASK,
}
REPLY = {
    "id": "i",
    "model": "m",
    "prompt_token_ids": [1],
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"} | TOKENS],
}


class Worker:
    """An inference worker, with API keys and a publisher; answers every call alike."""

    name, gives_tokens, plain_logprobs, speaks, fallbacks = "workers", True, True, ("chat",), ()

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.steps: list[Any] = []
        self.sent: list[Any] = []

    def for_model(self, model: str) -> Any:
        return self

    def admit(self, model: str) -> None:
        pass

    def authorize(self, credentials: Any, scope: str) -> Grant:
        return ANYTHING

    def check_model(self, grant: Grant, model: str) -> None:
        pass

    def headers(self, *_: Any) -> Any:
        return []

    async def send(self, method: str, path: str, body: bytes, headers: Any, route: Any) -> Reply:
        self.received.append(orjson.loads(body))
        return Reply(200, [], orjson.dumps(REPLY), Upstream("u", in_flight=1))

    def publish_all(self, events: Sequence[Event]) -> None:
        self.steps += [event.record for event in events]


def call(
    rule: str, request: dict[str, Any], protocol: Any = CHAT, *headers: tuple[bytes, bytes], mask_ids: int = 0
) -> Worker:
    worker = Worker()
    variables = {"STEPSTREAM_GATEWAY_TRAIN_SAMPLING": rule, "STEPSTREAM_GATEWAY_SAMPLING_MASK_IDS": str(mask_ids)}
    settings = load(variables).gateway
    stub: Any = worker

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": orjson.dumps(QUESTION | request | {"model": "m"})}

    async def send(message: Any) -> None:
        worker.sent.append(message)

    scope = {
        "headers": list(headers),
        "query_string": b"",
        "extensions": {CONNECTION: SimpleNamespace(disconnected=False, on_disconnect=None)},
    }
    with closing(EncryptedStore(None, 100_000, 60.0)) as store:
        saved = SavedResponses(store)
        handler = CallHandler(
            settings,
            stub,
            stub,
            stub,
            Metrics(),
            "test/1",
            *NO_FILES,
            saved,
            TrackChooser({}),
            HarnessChooser(HarnessRecords()),
            new_counts(),
        )
        asyncio.run(handler(cast(Any, scope), receive, send, protocol, "t"))
    return worker


def test_mark_sends_the_call_as_it_came_and_records_it() -> None:
    worker = call("mark", TRUNCATED)
    assert TRUNCATED.items() <= worker.received[0].items()
    assert (worker.steps[0]["sampling"]["top_k"], worker.steps[0]["sampling"]["min_p"]) == (3, 0.1)


@pytest.mark.parametrize(
    ("request_", "headers", "asked"),
    [
        ({"top_p": 0.5}, [], True),
        ({"response_format": {"type": "json_object"}}, [], True),
        ({}, [], False),
        ({"top_p": 0.5, "presence_penalty": 1}, [], False),
        ({"temperature": 0, "top_p": 0.5}, [], False),
        ({"top_p": 0.5}, [(b"x-stepstream-split", b"eval")], False),
    ],
    ids=str,
)
def test_masks_are_requested_where_they_make_tokens_trainable(
    request_: dict[str, Any], headers: Any, asked: bool
) -> None:
    worker = call("mark", request_, CHAT, *headers, mask_ids=64)
    assert worker.received[0].get("stepstream_sampling_mask") == (64 if asked else None)
    assert worker.steps[0]["sampling_mask"] == MASK
    [answer] = [orjson.loads(message["body"]) for message in worker.sent if message.get("body")]
    assert "sampling_mask" not in answer["choices"][0]
    assert "stepstream_sampling_mask" not in call("mark", request_, CHAT, *headers).received[0]


@pytest.mark.parametrize("protocol", [CHAT, ANTHROPIC], ids=lambda protocol: protocol.name)
def test_force_sends_and_records_the_whole_softmax(protocol: Any) -> None:
    worker = call("force", TRUNCATED, protocol)
    assert worker.received[0].keys().isdisjoint(TRUNCATED.keys() - {"model", "temperature"})
    sampling = worker.steps[0]["sampling"]
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"], sampling["min_p"]) == (0.7, 1.0, 0, 0.0)


def test_force_leaves_what_the_agent_asks_for() -> None:
    request = {"temperature": 0, "top_p": 0.5, "logit_bias": {"1": 5}, "response_format": {"type": "json_object"}}
    assert apply_train_sampling(request, "force") == {name: request[name] for name in request if name != "top_p"}


@pytest.mark.parametrize("request_", [{}, {"temperature": 0.7, "seed": 5}, {"top_p": 1, "top_k": -1, "logit_bias": {}}])
@pytest.mark.parametrize("rule", ["force", "mark", "reject"])
def test_an_unrestricted_call_is_unchanged(rule: Any, request_: dict[str, Any]) -> None:
    assert apply_train_sampling(request_, rule) is request_


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", 0),
        ("top_p", 0.5),
        ("top_k", 3),
        ("min_p", 0.1),
        ("frequency_penalty", 1),
        ("logit_bias", {"1": 5}),
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
    ],
)
def test_reject_names_the_parameter(param: str, value: Any) -> None:
    with pytest.raises(RestrictedSampling, match=f"'{param}'") as caught:
        apply_train_sampling({"model": "m", "seed": 1, param: value}, "reject")
    assert caught.value.param == param


def test_a_rejected_call_gets_status_400_and_is_not_recorded() -> None:
    worker = call("reject", TRUNCATED)
    assert (worker.sent[0]["status"], worker.received, worker.steps) == (400, [], [])
    assert orjson.loads(worker.sent[1]["body"])["error"]["param"] == "top_p"


@pytest.mark.parametrize("header", [(b"x-stepstream-split", b"eval"), (b"x-stepstream-consent", b"analyse")])
def test_calls_that_are_not_trained_on_are_unchanged(header: tuple[bytes, bytes]) -> None:
    for rule in ("force", "reject"):
        assert TRUNCATED.items() <= call(rule, TRUNCATED, CHAT, header).received[0].items()
