"""Test Anthropic's Messages through the gateway: translated for a worker, unchanged to a provider that speaks them."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from gateway_fixtures import Recorded
from scripted_anthropic import REQUEST_ID, ScriptedAnthropic
from scripted_upstream import LOGPROB, ScriptedUpstream, prompt_ids, response_ids, solve
from service_process import ServiceProcess
from waiting import TIMEOUT_S

from stepstream.config import ProviderSettings
from stepstream.services.gateway.http.sse import EventParser

QUESTION = {"role": "user", "content": "q:a+c"}
GET = {"name": "get", "input_schema": {"type": "object", "properties": {"input": {"type": "string"}}}}


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedAnthropic]:
    """A provider of the models `claude-*`."""
    with ScriptedAnthropic() as made:
        yield made


@pytest.fixture(scope="module")
def gateway_fields(provider: ScriptedAnthropic) -> dict[str, Any]:
    """Give the gateway the provider beside its worker."""
    entry = ProviderSettings(name="scripted", base_url=provider.url, models=["claude-*"], protocols=["anthropic"])
    return {"providers": [entry]}


@pytest.fixture(autouse=True)
def fresh(upstream: ScriptedUpstream, provider: ScriptedAnthropic) -> Iterator[None]:
    """Reset worker and provider after each test."""
    yield
    upstream.status, upstream.break_after, upstream.reply = 200, None, lambda request: "hello"
    provider.recover()
    provider.say = lambda request: [{"type": "text", "text": "hello"}]


@pytest.fixture
def http(gateway: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{gateway.settings.gateway.port}", timeout=TIMEOUT_S) as client:
        yield client


def new_headers() -> dict[str, str]:
    return {"x-stepstream-trajectory": str(uuid.uuid4()), "x-api-key": "k", "anthropic-version": "2023-06-01"}


def body(*turns: Any, model: str = "demo", **fields: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 64, "messages": list(turns or (QUESTION,)), **fields}


def events_of(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in EventParser().feed(raw) if event.data is not None]


def streamed_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message of a stream that only calls tools."""
    content = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    for event in events:
        if event["type"] == "content_block_delta":
            content[event["index"]]["input"] = json.loads(event["delta"]["partial_json"])
    (end,) = [event for event in events if event["type"] == "message_delta"]
    return {"content": content} | end["delta"]


@pytest.mark.parametrize("path", ["/v1/messages", "/messages"])
def test_a_workers_answer_is_a_message_and_a_step_with_tokens(
    http: httpx.Client, upstream: ScriptedUpstream, recorded: Recorded, path: str
) -> None:
    headers = new_headers()
    request_body = body(system="s", temperature=0.5, metadata={"user_id": "someone"}, top_k=3)
    answer = http.post(path, json=request_body, headers=headers)
    assert answer.status_code == 200
    reply = answer.json()
    assert (reply["type"], reply["content"], reply["stop_reason"]) == (
        "message",
        [{"type": "text", "text": "hello"}],
        "end_turn",
    )
    assert not {"prompt_token_ids", "choices"} & set(reply)
    sent = upstream.requests[-1]
    assert (sent["top_k"], sent["user"], sent["max_tokens"], "stop" in sent) == (3, "someone", 64, False)
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    chat = [{"role": "system", "content": "s"}, QUESTION]
    assert [(message["role"], message["content"]) for message in step["messages"]] == [
        (message["role"], message["content"]) for message in chat
    ]
    assert step["prompt_token_ids"] == prompt_ids(chat)
    assert step["response_token_ids"] == response_ids("hello")
    assert step["response_logprobs"] == [LOGPROB] * 6
    assert (step["fidelity"], step["finish_reason"], step["user"]) == ("token", "stop", "someone")
    assert step["sampling"]["temperature"] == 0.5


def test_a_workers_stream_has_anthropics_events(
    http: httpx.Client, upstream: ScriptedUpstream, recorded: Recorded
) -> None:
    headers = new_headers()
    answer = http.post("/v1/messages?beta=true", json=body(stream=True), headers=headers)
    assert upstream.queries[-1] == ""  # the query belongs to the other protocol
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.content)
    assert [event["type"] for event in events[:3]] == ["message_start", "ping", "content_block_start"]
    assert [event["type"] for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta") == "hello"
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["fidelity"], step["response"]["content"]) == ("token", "hello")
    assert step["response_token_ids"] == response_ids("hello")


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_their_results_make_one_trajectory(
    http: httpx.Client, upstream: ScriptedUpstream, recorded: Recorded, stream: bool
) -> None:
    upstream.reply = solve
    headers = new_headers()
    turns: list[Any] = [QUESTION]
    for _ in range(2):
        answer = http.post("/v1/messages", json=body(*turns, tools=[GET], stream=stream), headers=headers)
        reply = streamed_message(events_of(answer.content)) if stream else answer.json()
        assert reply["stop_reason"] == "tool_use"
        (call,) = [block for block in reply["content"] if block["type"] == "tool_use"]
        assert (call["name"], call["id"]) == ("get", "call_1")
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "4"}]}
        turns += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [result]}]
    first, second = recorded("steps", headers["x-stepstream-trajectory"], 2)
    before = prompt_ids([QUESTION]) + response_ids("get(a)")
    assert first["response"]["tool_calls"][0]["arguments"] == '{"input": "a"}'
    assert (second["fidelity"], second["prompt_shared_tokens"]) == ("token", len(before))
    assert second["prompt_shared_messages"] == 2
    assert [(message["role"], message["tool_call_id"], message["content"]) for message in second["messages"]] == [
        ("tool", "call_1", "4")
    ]


def test_an_unsupported_tool_is_rejected_with_anthropics_error(http: httpx.Client) -> None:
    tool = {"type": "web_search_20250305", "name": "web_search"}
    answer = http.post("/v1/messages", json=body(tools=[tool]), headers=new_headers())
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "web_search_20250305" in answer.json()["error"]["message"]


def test_a_workers_error_has_anthropics_shape(
    http: httpx.Client, upstream: ScriptedUpstream, recorded: Recorded
) -> None:
    upstream.status = 400
    headers = new_headers()
    answer = http.post("/v1/messages", json=body(), headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert "scripted" in answer.json()["error"]["message"]
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["error"], step["finish_reason"]) == ("scripted_error", "error")


def test_a_workers_broken_stream_ends_with_an_error_and_is_recorded(
    http: httpx.Client, upstream: ScriptedUpstream, recorded: Recorded
) -> None:
    upstream.break_after = 3
    headers = new_headers()
    events = events_of(http.post("/v1/messages", json=body(stream=True), headers=headers).content)
    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", "api_error")
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["error"], step["response"]["content"]) == ("upstream_disconnected", "hel")


@pytest.mark.parametrize("stream", [False, True])
def test_a_providers_request_and_reply_pass_unchanged(
    http: httpx.Client, provider: ScriptedAnthropic, recorded: Recorded, stream: bool
) -> None:
    provider.say = lambda request: [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "looking"},
        {"type": "tool_use", "id": "toolu_1", "name": "get", "input": {"input": "a"}},
        {"type": "tool_use", "id": "toolu_2", "name": "get", "input": {"input": "c"}},
    ]
    headers = new_headers() | {"anthropic-beta": "some-beta"}
    request_body = json.dumps(body(model="claude-x", stream=stream, unknown={"a": 1}, tools=[GET]), indent=2).encode()
    answer = http.post("/v1/messages?beta=true&x=a%20b", content=request_body, headers=headers)
    assert (provider.bodies[-1], provider.queries[-1]) == (request_body, "beta=true&x=a%20b")
    sent_headers = {name.lower(): value for name, value in provider.headers[-1].items()}
    assert (sent_headers["x-api-key"], sent_headers["anthropic-version"], sent_headers["anthropic-beta"]) == (
        "k",
        "2023-06-01",
        "some-beta",
    )
    assert (answer.status_code, answer.content, answer.headers["request-id"]) == (200, provider.sent, REQUEST_ID)
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["fidelity"], step["finish_reason"], step["model"]) == ("text", "tool_calls", "claude-x")
    assert (step["response"]["content"], step["response"]["reasoning"]) == ("looking", "hm")
    assert [(call["call_id"], call["arguments"]) for call in step["response"]["tool_calls"]] == [
        ("toolu_1", '{"input":"a"}'),
        ("toolu_2", '{"input":"c"}'),
    ]
    assert (step["usage_prompt_tokens"], step["usage_response_tokens"]) == (7, 3)
    assert json.loads(step["tool_definitions"]) == [GET]


def test_a_conversation_with_a_provider_stores_each_message_once(
    http: httpx.Client, provider: ScriptedAnthropic, recorded: Recorded
) -> None:
    tool_use = [{"type": "tool_use", "id": "toolu_1", "name": "get", "input": {"input": "a"}}]
    provider.say = lambda request: tool_use if len(request["messages"]) == 1 else [{"type": "text", "text": "4"}]
    headers = new_headers()
    http.post("/v1/messages", json=body(model="claude-x"), headers=headers)
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4", "cache_control": {"type": "ephemeral"}}
    marked = {"role": "user", "content": [{"type": "text", "text": QUESTION["content"], "cache_control": {}}]}
    turns = [marked, {"role": "assistant", "content": tool_use}, {"role": "user", "content": [result]}]
    http.post("/v1/messages", json=body(*turns, model="claude-x", stream=True), headers=headers)
    first, second = recorded("steps", headers["x-stepstream-trajectory"], 2)
    assert (first["step_index"], second["step_index"]) == (0, 1)
    assert second["prompt_shared_messages"] == 2
    assert [(message["role"], message["tool_call_id"]) for message in second["messages"]] == [("tool", "toolu_1")]
    assert second["response"]["content"] == "4"


@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limit_error"), (529, "overloaded_error")])
def test_a_providers_error_reaches_the_caller_unchanged(
    http: httpx.Client, provider: ScriptedAnthropic, recorded: Recorded, status: int, kind: str
) -> None:
    provider.fail(status, kind, retry_after="7")
    headers = new_headers()
    answer = http.post("/v1/messages", json=body(model="claude-x", stream=True), headers=headers)
    assert (answer.status_code, answer.content) == (status, provider.sent)
    assert (answer.headers["retry-after"], answer.headers["request-id"]) == ("7", REQUEST_ID)
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["error"], step["finish_reason"]) == (kind, "error")


def test_a_providers_broken_stream_ends_with_an_error_and_is_recorded(
    http: httpx.Client, provider: ScriptedAnthropic, recorded: Recorded
) -> None:
    provider.break_after = 4
    headers = new_headers()
    answer = http.post("/v1/messages", json=body(model="claude-x", stream=True), headers=headers)
    assert answer.content.startswith(provider.sent)
    assert events_of(answer.content)[-1]["type"] == "error"
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["error"], step["fidelity"], step["response"]["content"]) == ("upstream_disconnected", "text", "hel")
