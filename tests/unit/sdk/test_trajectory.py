"""Trajectories record steps, rewards, feedback, sub-agents and their end."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stepstream import sdk
from stepstream.config import GatewaySettings
from stepstream.services.gateway.identity import identify
from stepstream.topics.events import new_sampling

QUESTION = {"role": "user", "content": "what is a + c?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"name": "a"}'}}


@sdk.tool
def get(name: str) -> int:
    return {"a": 4}[name]


@sdk.tool(name="fetch")
async def get_later(name: str) -> int:
    await asyncio.sleep(0)
    return {"a": 4}[name]


def test_a_trajectory_records_steps_tools_rewards_and_end(sink: sdk.MemorySink) -> None:
    with sdk.trajectory("task", agent="clerk", group_id="g", environment="lookup", user="ann") as t:
        messages: list[Any] = [QUESTION]
        with t.step(messages=messages, model="m", temperature=0.5, max_tokens=9) as s:
            assert (sdk.current(), sdk.current_step(), s.index) == (t, s, 0)
            s.first_token()
            s.response(tool_calls=[CALL], finish_reason="tool_calls", response_tokens=7)
            assert get("a") == 4
            s.reward("format", True)
        messages += [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
        messages += [{"role": "tool", "tool_call_id": "c1", "content": "4"}]
        with t.step(messages=messages, model="m") as s:
            s.response("8")
        t.reward("outcome", 1.0)
        t.feedback("thumbs", category="up", comment="fine", source="user")
    first, second = sink.of("steps")
    assert (first["agent"], first["task_id"], first["group_id"], first["user"]) == ("clerk", "task", "g", "ann")
    assert (first["environment"], first["model"], first["sampling"]["temperature"]) == ("lookup", "m", 0.5)
    (call,) = first["response"]["tool_calls"]
    assert (call["call_id"], call["name"], call["result"], call["error"]) == ("c1", "get", "4", None)
    assert call["duration_ms"] >= 0
    assert (first["finish_reason"], first["usage_response_tokens"], first["end"]) == ("tool_calls", 7, "open")
    assert 0 <= first["first_token_ms"] <= first["duration_ms"]
    assert (second["step_index"], second["prompt_shared_messages"], second["prompt_shared_step"]) == (1, 2, None)
    assert [message["content"] for message in second["messages"]] == ["4"]
    form, outcome, thumbs, end = sink.of("feedback")
    assert (form["name"], form["value"], form["step_index"]) == ("format", 1.0, 0)
    assert (outcome["value"], outcome["step_index"], outcome["end"]) == (1.0, None, "open")
    assert (thumbs["category"], thumbs["value"]) == ("up", None)
    assert (end["end"], end["last_step_index"], end["value"]) == ("terminated", 1, None)
    assert {key for _, key, _ in sink.events} == {t.id}
    assert sdk.current_step() is None
    assert not sdk.current().is_recorded


async def test_parallel_sub_agents_are_children_of_the_calling_step(sink: sdk.MemorySink) -> None:
    @sdk.sub_agent(agent="searcher")
    async def search(what: str) -> str:
        async with sdk.current().step([what]) as s:
            await asyncio.sleep(0)
            s.response(f"found {what}")
            return f"found {what}"

    @sdk.trajectory("task", agent="lead")
    async def work() -> str:
        t = sdk.current()
        async with t.step([QUESTION]) as s:
            found = await asyncio.gather(search("x"), search("y"))
            assert await get_later("a") == 4
            s.response("; ".join(found))
        return t.id

    parent = await work()
    children = [step for step in sink.of("steps") if step["agent"] == "searcher"]
    assert {step["messages"][0]["content"] for step in children} == {"x", "y"}
    assert {(step["parent_trajectory_id"], step["parent_step_index"]) for step in children} == {(parent, 0)}
    assert len({step["trajectory_id"] for step in children}) == 2
    assert {step["task_id"] for step in children} == {"task"}
    (lead,) = [step for step in sink.of("steps") if step["agent"] == "lead"]
    assert lead["response"]["content"] == "found x; found y"
    assert len([entry for entry in sink.of("feedback") if entry["end"] == "terminated"]) == 3


def test_exceptions_are_recorded_and_propagate(sink: sdk.MemorySink) -> None:
    @sdk.trajectory()
    def work() -> None:
        with sdk.current().step([QUESTION]) as s:
            s.response("I look", tool_calls=[CALL])
            get("nothing")

    with pytest.raises(KeyError):
        work()
    (step,) = sink.of("steps")
    assert (step["error"], step["finish_reason"]) == ("KeyError", "error")
    assert [(c["name"], c["error"]) for c in step["response"]["tool_calls"]] == [("get", "KeyError")]
    (end,) = sink.of("feedback")
    assert (end["end"], end["category"], end["last_step_index"]) == ("truncated", "KeyError", 0)


def test_a_step_or_the_trajectory_itself_may_end_it(sink: sdk.MemorySink) -> None:
    with sdk.trajectory() as t, t.step() as s:
        s.end("terminated")
    with sdk.trajectory() as t:
        t.end("truncated")
    assert sink.of("steps")[0]["end"] == "terminated"
    assert [entry["end"] for entry in sink.of("feedback")] == ["truncated"]


def test_ids_may_be_numbers_and_uuids(sink: sdk.MemorySink) -> None:
    name = uuid.uuid4()
    with sdk.trajectory(7, group_id=8, user=name, trajectory_id=name) as t, t.step(), t.sub_agent(task_id=9) as child:
        assert (child.info.task_id, child.info.parent_trajectory_id) == ("9", t.id)
    sdk.feedback(name, "merged", 1)
    [step] = sink.of("steps")
    assert (step["task_id"], step["group_id"], step["user"]) == ("7", "8", str(name))
    assert sink.of("feedback")[-1]["trajectory_id"] == t.id == str(name)
    with sdk.trajectory(None) as t:
        assert t.info.task_id == ""


@pytest.mark.parametrize("decorate", [sdk.trajectory, sdk.sub_agent])
def test_decorators_need_no_parentheses(sink: sdk.MemorySink, decorate: Callable[[Any], Any]) -> None:
    @decorate
    def work(what: str) -> str:
        return f"{what} in {sdk.current().id}"

    assert work("done").startswith("done in ")
    assert [entry["end"] for entry in sink.of("feedback")] == ["terminated"]


def test_generators_are_returned_undecorated(caplog: pytest.LogCaptureFixture) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    assert sdk.trajectory()(numbers) is numbers
    assert "generator" in caplog.text


def test_threads_have_separate_trajectories(sink: sdk.MemorySink) -> None:
    def work() -> None:
        with sdk.trajectory() as t:
            for _ in range(20):
                with t.step(["hi"]):
                    assert sdk.current() is t

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_trajectory: dict[str, list[int]] = {}
    for step in sink.of("steps"):
        by_trajectory.setdefault(step["trajectory_id"], []).append(step["step_index"])
    assert list(by_trajectory.values()) == [list(range(20))] * 4


def test_feedback_about_an_earlier_trajectory_is_sent(sink: sdk.MemorySink) -> None:
    sdk.feedback("t9", "merged", 1.0, source="business", comment="three days later", tenant="acme")
    (entry,) = sink.of("feedback")
    assert (entry["trajectory_id"], entry["value"], entry["tenant"]) == ("t9", 1.0, "acme")


def test_through_the_gateway_the_sdk_sends_only_tools_and_rewards(sink: sdk.MemorySink) -> None:
    with sdk.trajectory("task", agent="a", trajectory_id="t1") as t:
        headers = t.headers()
        assert (headers["x-stepstream-trajectory"], headers["x-stepstream-task"]) == ("t1", "task")
        assert "x-stepstream-user" not in headers
        with t.step() as s:
            assert s.headers()["x-stepstream-step"] == "0"
            get("a")
        t.reward("outcome", 0.0)
    assert sink.of("steps") == []
    tool, outcome, end = sink.of("feedback")
    assert (tool["name"], tool["comment"], tool["value"], tool["step_index"]) == ("tool", "get", 1.0, 0)
    assert outcome["value"] == 0.0
    assert end["last_step_index"] is None


def test_headers_are_ascii_and_the_gateway_accepts_them(sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture) -> None:
    with sdk.trajectory("t" * 300, user="Jos\xe9 100%", agent="50%", group_id="a\nb", trajectory_id="1") as t:
        headers = t.headers()
    assert {name: value for name, value in headers.items() if not value.isascii()} == {}
    assert identify([(k.encode(), v.encode()) for k, v in headers.items()], GatewaySettings()).user == "Jos\xe9 100%"
    assert headers["x-stepstream-agent"] == "50%"
    assert not headers.keys() & {"x-stepstream-task", "x-stepstream-group"}
    assert caplog.text.count("no header for") == 2


def test_spaces_at_the_ends_of_a_name_reach_the_gateway(sink: sdk.MemorySink) -> None:
    with sdk.trajectory("2 + 2? ", user=" ", trajectory_id=" a b") as t:
        headers = t.headers()
    # HTTP clients refuse such values, or remove the spaces.
    assert all(value == value.strip() != "" for value in headers.values())
    identity = identify([(k.encode(), v.encode()) for k, v in headers.items()], GatewaySettings())
    assert (identity.trajectory_id, identity.task_id, identity.user) == (" a b", "2 + 2? ", " ")


def test_further_sampling_parameters_are_recorded(sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture) -> None:
    with sdk.trajectory("task") as t:
        with t.step("q", temperature=0.7, sampling={"top_k": 20, "constraint": "regex", "temperature": 0.1}) as s:
            s.response("a")
        with t.step("q", sampling={"topk": 20}) as s:
            s.response("a")
    first, second = [step["sampling"] for step in sink.of("steps")]
    assert first == new_sampling(temperature=0.7, top_k=20, constraint="regex")
    assert second == new_sampling()
    assert "no field ['topk']" in caplog.text
