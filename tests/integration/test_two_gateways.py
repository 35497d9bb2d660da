"""Test several gateways that serve one trajectory in turns, several processes on one port, and their deaths."""

import json
import os
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import psutil
import pytest
from fold_harness import FoldRun, MemoryState
from gateway_fixtures import gateway_process, gateway_settings, read_topic
from label_runs import Run
from label_runs import governed as label_input
from scripted_upstream import ScriptedUpstream, prompt_ids, response_ids
from service_process import ServiceProcess
from stream_records import make_ending
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block
from stepstream.jobs.governance import JOB
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.governance.fold import GovernFold
from stepstream.topics.ids import now_us

Message = dict[str, Any]


@pytest.fixture(scope="module")
def gateways(
    registry_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """One gateway of two processes, and one of a single process with a folder of its own."""
    with ExitStack() as stack:
        upstream = stack.enter_context(ScriptedUpstream())
        upstream.reply = lambda request: f"reply {len(request['messages'])} {uuid.uuid4()}"
        started = []
        for name, fields in (("one", {"processes": 2, "metrics_port": free_block(2)}), ("two", {})):
            folder = tmp_path_factory.mktemp(name)
            settings = gateway_settings(registry_settings, upstream, spool=folder / "spool", **fields)
            settings = settings.model_copy(update={"paths": settings.paths.model_copy(update={"data": folder})})
            started.append(stack.enter_context(gateway_process(settings, folder / "log")))
        yield started[0], started[1]


def ask(gateway: ServiceProcess, messages: list[Message], **headers: str) -> httpx.Response:
    """Make one call on a connection of its own, so that any process of the gateway may take it."""
    reply = httpx.post(
        f"http://127.0.0.1:{gateway.settings.gateway.port}/v1/chat/completions",
        json={"model": "demo", "messages": messages},
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        timeout=TIMEOUT_S,
    )
    assert reply.status_code == 200, reply.text
    return reply


def answered(messages: list[Message], reply: httpx.Response, text: str) -> list[Message]:
    """Return the next turn of a chat."""
    message = reply.json()["choices"][0]["message"]
    return [*messages, {"role": "assistant", "content": message["content"]}, {"role": "user", "content": text}]


def governed(settings: Settings, name: str, count: int) -> list[Any]:
    """Return the steps of a trajectory, as `govern` gives them on from the log."""
    return governed_records(read_topic(settings, "steps", name, count))


def governed_records(steps: list[Any]) -> list[Any]:
    """Return the governed form of steps in this order."""
    fold = GovernFold(ActivePolicies(b"key", {}, {}), dedup_days=7, max_future_s=300.0, now_us=now_us)
    run = FoldRun(JOB, fold, MemoryState())
    records = [run.record("steps", step) for step in steps]
    return [event for topic, _, event in run.feed(records) if topic == "governed-steps"]


def labelled(steps: list[Any]) -> Any:
    """Return the label of a successful trajectory of these governed steps."""
    count = max(step["step_index"] for step in steps) + 1
    ending = label_input(make_ending(steps[0]["trajectory_id"], count))
    return Run().labels(*[("governed-steps", step) for step in steps], ("governed-feedback", ending))[-1]


def test_a_chat_over_two_gateways_and_a_kill_has_each_index_once(
    gateways: tuple[ServiceProcess, ServiceProcess], registry_settings: Settings
) -> None:
    one, two = gateways
    name = str(uuid.uuid4())
    messages: list[Message] = [{"role": "user", "content": "begin"}]
    prompts, returned = [], []
    for turn, gateway in enumerate((one, two, one, one, two, two, one)):
        if turn == 2:
            two.kill()
            two.start()
        reply = ask(gateway, messages, x_stepstream_trajectory=name)
        returned.append(int(reply.headers["x-stepstream-step"]))
        prompts.append(messages)
        messages = answered(messages, reply, f"turn {turn}")
    assert returned == list(range(7))
    steps = governed(registry_settings, name, 7)
    assert sorted(step["step_index"] for step in steps) == list(range(7))
    label = labelled(steps)
    assert [step["step_index"] for step in label["steps"]] == list(range(7))
    assert (label["complete"], label["trainable"], label["fidelity"]) == (True, True, "token")
    spans = {}
    for sequence in label["sequences"]:
        for span in sequence["spans"]:
            assert span["step_index"] not in spans
            spans[span["step_index"]] = list(sequence["token_ids"])[: span["end"]]
    for index, prompt in enumerate(prompts):
        text = messages[2 * index + 1]["content"]
        assert spans[index] == prompt_ids(prompt) + response_ids(text)


def test_calls_at_once_over_two_gateways_have_each_index_once(
    gateways: tuple[ServiceProcess, ServiceProcess], registry_settings: Settings
) -> None:
    name = str(uuid.uuid4())
    messages: list[Message] = [{"role": "user", "content": "begin"}]
    turn = answered(messages, ask(gateways[0], messages, x_stepstream_trajectory=name), "go on")
    with ThreadPoolExecutor(6) as pool:
        parallel = [pool.submit(ask, gateways[number % 2], turn, x_stepstream_trajectory=name) for number in range(6)]
        replies = [each.result() for each in parallel]
    last = ask(gateways[1], answered(turn, replies[0], "and?"), x_stepstream_trajectory=name)
    assert last.headers["x-stepstream-trajectory"] == name
    steps = governed(registry_settings, name, 8)
    assert sorted(step["step_index"] for step in steps) == list(range(8))
    label = labelled(steps)
    assert label["complete"]
    responses = {step["response"]["content"] for step in steps}
    assert len(responses) == 8
    assert sum(len(sequence["spans"]) for sequence in label["sequences"]) == 8


def test_the_processes_of_one_port_place_a_conversation_without_a_name(
    gateways: tuple[ServiceProcess, ServiceProcess], registry_settings: Settings
) -> None:
    one, _ = gateways
    messages: list[Message] = [{"role": "user", "content": str(uuid.uuid4())}]
    names, indices = set(), []
    for turn in range(12):
        reply = ask(one, messages)
        names.add(reply.headers["x-stepstream-trajectory"])
        indices.append(int(reply.headers["x-stepstream-step"]))
        messages = answered(messages, reply, f"turn {turn}")
    assert indices == list(range(12))
    (name,) = names
    assert labelled(governed(registry_settings, name, 12))["complete"]


def test_an_evaluation_under_one_root_span_is_a_trajectory_for_each_conversation(
    gateways: tuple[ServiceProcess, ServiceProcess],
) -> None:
    one, _ = gateways
    trace = uuid.uuid4().hex
    span = f"00-{trace}-b7ad6b7169203331-01"
    tasks = [[{"role": "user", "content": f"task {number}"}] for number in range(4)]
    first = [ask(one, task, traceparent=span) for task in tasks]
    names = [reply.headers["x-stepstream-trajectory"] for reply in first]
    assert len(set(names)) == 4
    assert names[0] == trace
    second = [
        ask(one, answered(task, reply, "go on"), traceparent=span) for task, reply in zip(tasks, first, strict=True)
    ]
    assert [reply.headers["x-stepstream-trajectory"] for reply in second] == names
    assert {reply.headers["x-stepstream-step"] for reply in second} == {"1"}


def test_a_killed_process_is_started_again_and_nothing_is_lost(
    gateways: tuple[ServiceProcess, ServiceProcess], registry_settings: Settings
) -> None:
    one, _ = gateways
    port = one.settings.gateway.metrics_port
    assert "stepstream_gateway_calls_total" in httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert "its own metrics" in httpx.get(f"http://127.0.0.1:{one.settings.gateway.port}/metrics").text
    name = str(uuid.uuid4())
    messages: list[Message] = [{"role": "user", "content": "begin"}]
    for turn in range(4):
        messages = answered(messages, ask(one, messages, x_stepstream_trajectory=name), f"turn {turn}")
    before = {child.pid for child in one.children()}
    assert len(before) == 2
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: len({child.pid for child in one.children()} - before) == 1)
    wait_until(lambda: _serves(port))
    for turn in range(4):
        messages = answered(messages, ask(one, messages, x_stepstream_trajectory=name), f"turn {4 + turn}")
    steps = governed(registry_settings, name, 8)
    assert sorted(step["step_index"] for step in steps) == list(range(8))


def export(gateway: ServiceProcess, trace: str, *spans: dict[str, Any]) -> None:
    """Export spans as an instrumented agent does, the first one as the root."""
    encoded = [
        {
            "traceId": trace,
            "spanId": each["id"],
            "parentSpanId": each.get("parent", ""),
            "name": each.get("name", "chat demo"),
            "startTimeUnixNano": str(now_us() * 1000),
            "endTimeUnixNano": str(now_us() * 1000 + 1_000_000),
            "attributes": [
                {"key": key, "value": {"stringValue": value}} for key, value in each.get("attributes", {}).items()
            ],
        }
        for each in spans
    ]
    body = {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": encoded}]}]}
    reply = httpx.post(f"http://127.0.0.1:{gateway.settings.gateway.port}/v1/traces", json=body, timeout=TIMEOUT_S)
    assert reply.status_code == 200, reply.text


def chat_span(messages: list[Message], reply: httpx.Response) -> dict[str, str]:
    """Return the attributes of a call's span."""
    conversation = [*messages, reply.json()["choices"][0]["message"]]
    *prompt, response = [
        {"role": m["role"], "parts": [{"type": "text", "content": m["content"]}]} for m in conversation
    ]
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "demo",
        "gen_ai.response.id": reply.json()["id"],
        "gen_ai.input.messages": json.dumps(prompt),
        "gen_ai.output.messages": json.dumps([response]),
    }


@pytest.mark.parametrize("receiver", ["same", "other"])
@pytest.mark.parametrize("first", ["gateway", "telemetry"])
def test_a_call_that_both_the_gateway_and_telemetry_record_is_one_step(
    gateways: tuple[ServiceProcess, ServiceProcess], registry_settings: Settings, receiver: str, first: str
) -> None:
    one, two = gateways
    trace, messages = uuid.uuid4().hex, [{"role": "user", "content": str(uuid.uuid4())}]
    reply = ask(two, messages, traceparent=f"00-{trace}-b7ad6b7169203331-01")
    assert reply.headers["x-stepstream-trajectory"] == trace
    call = {"id": "b7ad6b7169203332", "attributes": chat_span(messages, reply)}
    export(two if receiver == "same" else one, trace, call, {"id": "b7ad6b7169203331", "parent": call["id"]})
    records = read_topic(registry_settings, "steps", trace, 2)
    assert {step["fidelity"] for step in records} == {"token", "span"}
    records.sort(key=lambda step: step["fidelity"], reverse=first == "gateway")
    steps = governed_records(records)
    assert [step["fidelity"] for step in steps] == (["token"] if first == "gateway" else ["span", "token"])
    assert {step["step_index"] for step in steps} == {0}
    label = labelled(steps)
    assert (len(label["steps"]), label["fidelity"], label["complete"]) == (1, "token", True)


def test_spans_of_a_named_trajectory_join_it_at_its_gateway(
    gateways: tuple[ServiceProcess, ServiceProcess], registry_settings: Settings
) -> None:
    _, two = gateways
    name, trace, messages = str(uuid.uuid4()), uuid.uuid4().hex, [{"role": "user", "content": "begin"}]
    reply = ask(two, messages, x_stepstream_trajectory=name, traceparent=f"00-{trace}-b7ad6b7169203331-01")
    export(two, trace, {"id": "b7ad6b7169203331", "attributes": chat_span(messages, reply)})
    assert len(read_topic(registry_settings, "steps", name, 2)) == 2
    # The two reach Kafka by different ways, in any order.
    steps = governed(registry_settings, name, 2)
    assert (steps[-1]["fidelity"], {step["step_index"] for step in steps}) == ("token", {0})
    assert len(labelled(steps)["steps"]) == 1


def test_all_processes_end_with_their_parent(gateways: tuple[ServiceProcess, ServiceProcess]) -> None:
    one, _ = gateways
    children = one.children()
    one.kill()
    assert len(children) == 2
    assert psutil.wait_procs(children, TIMEOUT_S)[1] == []
    one.start()
    children = one.children()
    assert one.stop() == 0
    assert not [child for child in children if child.is_running()]


def _serves(port: int) -> bool:
    try:
        return json.loads(httpx.get(f"http://127.0.0.1:{port}/health").text)["status"] == "ok"
    except httpx.TransportError:
        return False
