"""Test the gateway process with the stock client, a scripted worker, a real broker and a real registry."""

import asyncio
import contextlib
import json
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from confluent_kafka import Consumer
from gateway_fixtures import Recorded, gateway_process, gateway_settings, read_topic
from scripted_upstream import LOGPROB, ScriptedUpstream, prompt_ids, response_ids, solve
from service_process import ServiceProcess, broker, registry
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.topics import admin
from stepstream.topics.client import client_config

QUESTION: list[Any] = [{"role": "user", "content": "q:a+c"}]
GET = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(autouse=True)
def fresh(upstream: ScriptedUpstream) -> Iterator[None]:
    """Reset the worker after each test."""
    yield
    upstream.status, upstream.tokens, upstream.break_after, upstream.reply = 200, True, None, lambda request: "hello"


@pytest.fixture
async def client(gateway: ServiceProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url(gateway) + "/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def url(gateway: ServiceProcess) -> str:
    return f"http://127.0.0.1:{gateway.settings.gateway.port}"


def new_headers(**more: str) -> dict[str, str]:
    return {"x-stepstream-trajectory": str(uuid.uuid4())} | {f"x-stepstream-{k}": v for k, v in more.items()}


async def ask(client: openai.AsyncOpenAI, messages: list[Any], headers: dict[str, str], **more: Any) -> Any:
    return await client.chat.completions.create(model="demo", messages=messages, extra_headers=headers, **more)


async def test_a_call_is_answered_and_recorded(client: Any, upstream: ScriptedUpstream, recorded: Recorded) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model="demo", messages=QUESTION, temperature=0.5, extra_body={"top_k": 3}, user="someone"
    )
    reply = raw.parse()
    assert reply.choices[0].message.content == "hello"
    assert reply.choices[0].logprobs is None
    assert not {"prompt_token_ids"} & set(reply.model_extra)
    assert "token_ids" not in reply.choices[0].model_extra
    sent = upstream.requests[-1]
    assert (sent["top_k"], sent["user"], sent["logprobs"], sent["return_token_ids"]) == (3, "someone", True, True)
    assert "Authorization" not in upstream.headers[-1]
    assert raw.headers["x-stepstream-step"] == "0"
    (step,) = recorded("steps", raw.headers["x-stepstream-trajectory"])
    assert step["prompt_token_ids"] == prompt_ids(QUESTION)
    assert step["response_token_ids"] == response_ids("hello")
    assert step["response_logprobs"] == [LOGPROB] * 6
    assert step["policy_spans"] == [{"start": 0, "end": 6, "model": "demo", "version": 7}]
    assert (step["fidelity"], step["finish_reason"], step["sampling"]["temperature"]) == ("token", "stop", 0.5)
    assert step["response"]["content"] == "hello"
    assert step["duration_ms"] > 0


async def test_a_caller_gets_logprobs_and_token_ids_on_request(client: Any) -> None:
    reply = await ask(client, QUESTION, new_headers(), logprobs=True, extra_body={"return_token_ids": True})
    assert [token.logprob for token in reply.choices[0].logprobs.content] == [LOGPROB] * 6
    assert reply.choices[0].model_extra["token_ids"] == response_ids("hello")
    assert reply.model_extra["prompt_token_ids"] == prompt_ids(QUESTION)


async def test_a_stream_is_passed_on_and_recorded_as_one_step(client: Any, recorded: Recorded) -> None:
    headers = new_headers()
    text = ""
    async for chunk in await ask(client, QUESTION, headers, stream=True):
        assert chunk.choices[0].logprobs is None
        assert "token_ids" not in chunk.choices[0].model_extra
        text += chunk.choices[0].delta.content or ""
    assert text == "hello"
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert step["response"]["content"] == "hello"
    assert step["response_token_ids"] == response_ids("hello")
    assert step["prompt_token_ids"] == prompt_ids(QUESTION)
    assert step["policy_spans"] == [{"start": 0, "end": 6, "model": "demo", "version": 7}]
    assert 0 < step["first_token_ms"] <= step["duration_ms"]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_alternative_of_an_answer_is_recorded(client: Any, recorded: Recorded, stream: bool) -> None:
    headers = new_headers(group="g")
    reply = await ask(client, QUESTION, headers, n=3, stream=stream)
    if stream:
        async for _ in reply:
            pass
    else:
        assert [choice.message.content for choice in reply.choices] == ["hello", "hello1", "hello2"]
    trajectory = headers["x-stepstream-trajectory"]
    for name, text in ((trajectory, "hello"), (f"{trajectory}~0.1", "hello1"), (f"{trajectory}~0.2", "hello2")):
        (step,) = recorded("steps", name)
        assert (step["step_index"], step["fidelity"], step["error"]) == (0, "token", None)
        assert step["prompt_token_ids"] == prompt_ids(QUESTION)
        assert (step["response"]["content"], step["response_token_ids"]) == (text, response_ids(text))
        assert step["response_logprobs"] == [LOGPROB] * len(response_ids(text))
        assert step["group_id"] == ("g" if name == trajectory else None)
    await ask(client, QUESTION, headers)
    assert [step["step_index"] for step in recorded("steps", trajectory, 2)] == [0, 1]


async def test_a_trajectory_stores_each_token_and_message_once(
    client: Any, upstream: ScriptedUpstream, recorded: Recorded
) -> None:
    upstream.reply = solve
    headers = new_headers(task="task-1", group="g")
    messages: list[Any] = list(QUESTION)
    for _ in range(2):
        reply = (await ask(client, messages, headers, tools=[GET])).choices[0]
        assert reply.finish_reason == "tool_calls"
        assert reply.message.tool_calls[0].function.name == "get"
        messages += [reply.message.model_dump(), {"role": "tool", "tool_call_id": "call_1", "content": "4"}]
    first, second = recorded("steps", headers["x-stepstream-trajectory"], 2)
    assert (first["step_index"], second["step_index"]) == (0, 1)
    assert (first["task_id"], first["group_id"]) == ("task-1", "g")
    before = prompt_ids(QUESTION) + response_ids("get(a)")
    assert second["prompt_shared_tokens"] == len(before)
    assert before + second["prompt_token_ids"] == prompt_ids(messages[:3])
    assert second["prompt_shared_messages"] == 2
    assert [message["content"] for message in second["messages"]] == ["4"]
    assert (json.loads(first["tool_definitions"]), second["tool_definitions"]) == ([GET], None)


async def test_the_event_carries_the_callers_traceparent(
    client: Any, gateway: ServiceProcess, recorded: Recorded
) -> None:
    headers = new_headers() | {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await ask(client, QUESTION, headers)
    recorded("steps", headers["x-stepstream-trajectory"])
    consumer = Consumer(client_config(gateway.settings.kafka) | {"group.id": "t", "auto.offset.reset": "earliest"})
    consumer.subscribe(["steps"])
    messages: list[Any] = []

    def has_event() -> bool:
        messages.extend(consumer.consume(100, 0.2))
        return any(m.key() == headers["x-stepstream-trajectory"].encode() for m in messages)

    wait_until(has_event)
    consumer.close()
    (message,) = [m for m in messages if m.key() == headers["x-stepstream-trajectory"].encode()]
    assert dict(message.headers())["traceparent"] == headers["traceparent"].encode()
    assert dict(message.headers())["ce_type"] == b"stepstream.Step"


async def test_without_tokens_the_fidelity_is_text(client: Any, upstream: ScriptedUpstream, recorded: Recorded) -> None:
    upstream.tokens = False
    headers = new_headers()
    await ask(client, QUESTION, headers)
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["fidelity"], step["response"]["content"], step["prompt_token_ids"]) == ("text", "hello", [])


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_a_workers_error_reaches_the_agent_and_is_recorded(
    client: Any, upstream: ScriptedUpstream, recorded: Recorded, status: int
) -> None:
    upstream.status = status
    headers = new_headers()
    with pytest.raises(openai.APIStatusError) as caught:
        await ask(client, QUESTION, headers)
    assert caught.value.status_code == status
    assert caught.value.body["type"] == "scripted_error"  # type: ignore[index]
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["error"], step["finish_reason"]) == ("scripted_error", "error")
    assert step["messages"][0]["content"] == "q:a+c"


async def test_calls_wait_until_a_killed_worker_restarts(client: Any, upstream: ScriptedUpstream) -> None:
    upstream.hold()
    before = len(upstream.requests)
    calls = [asyncio.create_task(ask(client, QUESTION, new_headers())) for _ in range(3)]
    await asyncio.to_thread(wait_until, lambda: len(upstream.requests) == before + 3)
    await asyncio.to_thread(upstream.die)
    await asyncio.sleep(0.3)  # meanwhile connections are refused
    upstream.start()
    for call in calls:
        assert (await call).choices[0].message.content == "hello"


async def test_a_call_waits_for_a_starting_worker(client: Any, upstream: ScriptedUpstream) -> None:
    upstream.status = 503
    call = asyncio.create_task(ask(client, QUESTION, new_headers()))
    before = len(upstream.requests)
    await asyncio.to_thread(wait_until, lambda: len(upstream.requests) > before + 1)
    upstream.status = 200
    assert (await call).choices[0].message.content == "hello"


async def test_with_no_worker_the_call_fails_and_is_recorded(
    client: Any, upstream: ScriptedUpstream, recorded: Recorded, registry_settings: Settings, tmp_path: Path
) -> None:
    dead = ScriptedUpstream()
    settings = gateway_settings(registry_settings, dead, upstream_deadline_s=0.3)
    headers = new_headers()
    with gateway_process(settings, tmp_path / "log") as gateway:
        async with openai.AsyncOpenAI(base_url=url(gateway) + "/v1", api_key="k", max_retries=0) as other:
            with pytest.raises(openai.APIStatusError) as caught:
                await ask(other, QUESTION, headers)
            assert caught.value.status_code == 503
            assert dead.url in str(caught.value)
            assert caught.value.response.headers["x-stepstream-step"] == "0"
            dead.start()
            try:
                raw = await other.chat.completions.with_raw_response.create(
                    model="demo", messages=QUESTION, extra_headers=headers
                )
            finally:
                dead.die()
    assert raw.headers["x-stepstream-step"] == "1"
    steps = recorded("steps", headers["x-stepstream-trajectory"], 2)
    assert [(s["step_index"], s["error"]) for s in steps] == [(0, "upstream_unavailable"), (1, None)]
    assert steps[0]["messages"] == steps[1]["messages"]


async def test_a_second_worker_serves_while_the_first_is_down(
    registry_settings: Settings, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    dead = ScriptedUpstream()
    settings = gateway_settings(registry_settings, upstream, upstreams=[dead.url, upstream.url])
    with gateway_process(settings, tmp_path / "log") as gateway:
        async with openai.AsyncOpenAI(base_url=url(gateway) + "/v1", api_key="k", max_retries=0) as client:
            for _ in range(4):
                await ask(client, QUESTION, new_headers())


async def test_a_broken_stream_raises_and_is_recorded(
    client: Any, upstream: ScriptedUpstream, recorded: Recorded
) -> None:
    upstream.break_after = 3
    headers = new_headers()
    with pytest.raises(openai.APIError, match="during its answer"):
        async for _ in await ask(client, QUESTION, headers, stream=True):
            pass
    (step,) = recorded("steps", headers["x-stepstream-trajectory"])
    assert (step["error"], step["fidelity"], step["response"]["content"]) == ("upstream_disconnected", "text", "hel")


async def test_a_caller_that_disconnects_frees_the_worker_and_leaves_no_gap(
    client: Any, http: aiohttp.ClientSession, upstream: ScriptedUpstream, recorded: Recorded
) -> None:
    upstream.hold()
    before, cancelled = len(upstream.requests), upstream.cancelled
    headers = new_headers()
    call = asyncio.create_task(ask(client, QUESTION, headers))
    await asyncio.to_thread(wait_until, lambda: len(upstream.requests) > before)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    await asyncio.to_thread(wait_until, lambda: upstream.cancelled > cancelled)
    upstream.release()
    raw = await client.chat.completions.with_raw_response.create(model="demo", messages=QUESTION, extra_headers=headers)
    assert raw.headers["x-stepstream-step"] == "1"
    steps = recorded("steps", headers["x-stepstream-trajectory"], 2)
    assert [(s["step_index"], s["error"]) for s in steps] == [(0, "client_disconnected"), (1, None)]


async def test_feedback_is_recorded_or_rejected(
    http: aiohttp.ClientSession, gateway: ServiceProcess, recorded: Recorded
) -> None:
    trajectory = str(uuid.uuid4())
    item = {"trajectory_id": trajectory, "name": "outcome", "value": True, "ends_trajectory": "terminated"}
    async with http.post(url(gateway) + "/v1/feedback", json=item, headers={"x-stepstream-tenant": "acme"}) as reply:
        assert reply.status == 202
        event_id = (await reply.json())["event_id"]
    async with http.post(url(gateway) + "/v1/feedback", json=[item, item]) as reply:
        assert len((await reply.json())["event_ids"]) == 2
    first = recorded("feedback", trajectory, 3)[0]
    assert (first["event_id"], first["value"], first["end"], first["tenant"]) == (event_id, 1.0, "terminated", "acme")
    async with http.post(url(gateway) + "/v1/feedback", json=item | {"value": "good"}) as reply:
        assert reply.status == 400
        assert "value: must be" in (await reply.json())["error"]["message"]


async def test_other_paths_answer(client: Any, http: aiohttp.ClientSession, gateway: ServiceProcess) -> None:
    assert [model.id async for model in client.models.list()] == ["demo"]
    async with http.get(url(gateway) + "/metrics") as reply:
        assert "stepstream_gateway_calls_total" in await reply.text()
    async with http.get(url(gateway) + "/health") as reply:
        assert (await reply.json())["status"] == "ok"
    async with http.get(url(gateway) + "/ready") as reply:
        body = await reply.json()
        assert (reply.status, body["faults"], body["kafka"], body["upstreams"]) == (200, [], "ok", 1)
    async with http.get(url(gateway) + "/v1/chat/completions") as reply:
        assert reply.status == 405
    async with http.get(url(gateway) + "/nowhere") as reply:
        assert reply.status == 404
    for body, headers in ((b"{", {}), (b"[]", {}), (b"{}", {"x-stepstream-step": "x"})):
        async with http.post(url(gateway) + "/v1/chat/completions", data=body, headers=headers) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["type"] == "invalid_request_error"


async def test_stopping_finishes_open_calls_and_delivers_events(
    registry_settings: Settings, upstream: ScriptedUpstream, recorded: Recorded, tmp_path: Path
) -> None:
    process = gateway_process(gateway_settings(registry_settings, upstream), tmp_path / "log")
    headers = new_headers()
    with process:
        upstream.hold()
        before = len(upstream.requests)
        async with openai.AsyncOpenAI(base_url=url(process) + "/v1", api_key="k", max_retries=0) as client:
            call = asyncio.create_task(ask(client, QUESTION, headers))
            await asyncio.to_thread(wait_until, lambda: len(upstream.requests) > before)
            stopped = asyncio.create_task(asyncio.to_thread(process.stop))
            await asyncio.to_thread(wait_until, lambda: not _listens(process.settings.gateway.port))
            upstream.release()
            assert (await call).choices[0].message.content == "hello"
            assert await stopped == 0
    assert len(recorded("steps", headers["x-stepstream-trajectory"])) == 1


def test_a_port_in_use_stops_the_start(gateway: ServiceProcess, tmp_path: Path) -> None:
    other = gateway_process(gateway.settings, tmp_path / "log")
    other.launch()
    wait_until(lambda: other.status is not None)
    assert other.status == 1
    assert "STEPSTREAM_GATEWAY_PORT" in other.log_text


async def test_without_kafka_and_registry_calls_succeed_and_events_arrive_later(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    upstream: ScriptedUpstream,
    tmp_path: Path,
) -> None:
    settings = with_topics_and_tables(isolated(base_settings, tmp_path))
    later = registry(settings, tmp_path / "registry.log")
    settings = gateway_settings(later.settings, upstream)
    headers = new_headers()
    with gateway_process(settings, tmp_path / "gateway.log") as gateway:
        async with openai.AsyncOpenAI(base_url=url(gateway) + "/v1", api_key="k", max_retries=0) as client:
            for index in range(5):
                await ask(client, [{"role": "user", "content": str(index)}], headers)
            with broker(settings, tmp_path / "broker.log") as kafka, later:
                await asyncio.to_thread(admin.apply, settings)
                await ask(client, [{"role": "user", "content": "5"}], headers)
                steps = await asyncio.to_thread(read_topic, settings, "steps", headers["x-stepstream-trajectory"], 6)
                assert [step["messages"][0]["content"] for step in steps] == list("012345")
                kafka.kill()
                for index in range(6, 9):
                    await ask(client, [{"role": "user", "content": str(index)}], headers)
                kafka.start()
                steps = await asyncio.to_thread(read_topic, settings, "steps", headers["x-stepstream-trajectory"], 9)
                assert [step["step_index"] for step in steps] == list(range(9))
                assert gateway.stop() == 0


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
