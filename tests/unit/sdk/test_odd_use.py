"""The SDK as people use it who have not read its page: odd values, forgotten blocks, generators, processes."""

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE_S

from stepstream import sdk
from stepstream.config import GatewaySettings
from stepstream.sdk import shared_prefix
from stepstream.sdk.messages import message_of
from stepstream.services.gateway.identity import identify
from stepstream.topics.events import new_message


class Silent:
    def __repr__(self) -> str:
        raise ValueError("no looks")


itself: list[Any] = []
itself.append(itself)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (2**70, "1180591620717411303424"),
        ({"n": 2**70, "at": {1}}, '{"n":1180591620717411303424,"at":"{1}"}'),
        ({("a", 1): 2}, "{('a', 1): 2}"),
        ("cut \ud83d", "cut \ufffd"),
        (["\ud83d\ude00", "\ud83d"], '["\U0001f600","\ufffd"]'),
        (itself, "[[...]]"),
        (np.float32(0.5), "0.5"),
        (Silent(), '"<Silent>"'),
    ],
)
def test_whatever_a_tool_gives_back_is_recorded(sink: sdk.MemorySink, result: Any, text: str) -> None:
    @sdk.tool
    def look() -> Any:
        return result

    with sdk.trajectory() as t, t.step([{"role": "user", "content": result}], tools=[print]) as s:
        assert look() is result
        s.response("done", finish_reason=None, model=None)
    [step] = sink.of("steps")
    [call] = step["response"]["tool_calls"]
    assert (call["result"], step["messages"][0]["content"], step["finish_reason"]) == (text, text, "")
    assert "built-in function print" in step["tool_definitions"]


@pytest.mark.parametrize("prompt", ["what is a?", {"role": "user", "content": "what is a?"}, ["what is a?"]])
def test_a_prompt_may_be_one_message(sink: sdk.MemorySink, prompt: Any) -> None:
    with sdk.trajectory() as t, t.step(prompt):
        pass
    assert sink.of("steps")[0]["messages"] == [new_message(role="user", content="what is a?")]


@pytest.mark.parametrize(
    ("raw", "role", "content", "call"),
    [
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, "assistant", "", "c f {}"),
        ({"type": "function_call_output", "call_id": "c", "output": "4"}, "tool", "4", ""),
        ({"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, "user", "hi", ""),
        (
            {"type": "ai", "content": "", "tool_calls": [{"name": "f", "args": {}, "id": "c"}]},
            "assistant",
            "",
            "c f {}",
        ),
        ({"type": "human", "content": "hi"}, "user", "hi", ""),
        ({"role": "assistant", "content": None, "refusal": "I will not"}, "assistant", "I will not", ""),
        ({"what": 1}, "user", '{"what":1}', ""),
    ],
)
def test_messages_of_other_shapes_lose_nothing(raw: Any, role: str, content: str, call: str) -> None:
    made = message_of(raw)
    told = [f"{one['call_id']} {one['name']} {one['arguments']}" for one in made["tool_calls"]]
    assert (made["role"], made["content"], told) == (role, content, [call] if call else [])
    assert made["tool_call_id"] == ("c" if role == "tool" else None)


def test_ids_may_be_what_has_a_text(sink: sdk.MemorySink) -> None:
    name = uuid.uuid4()
    with sdk.trajectory(7, group_id=8, user=name, trajectory_id=name) as t, t.step(), t.sub_agent(task_id=9) as child:
        assert (child.about.task_id, child.about.parent_trajectory_id) == ("9", t.id)
    sdk.feedback(name, "merged", 1)
    [step] = sink.of("steps")
    assert (step["task_id"], step["group_id"], step["user"]) == ("7", "8", str(name))
    assert sink.of("feedback")[-1]["trajectory_id"] == t.id == str(name)
    with sdk.trajectory(None) as t:
        assert t.about.task_id == ""


def test_tokens_may_be_arrays_and_what_is_none_costs_them_alone(sink: sdk.MemorySink) -> None:
    given: list[Any] = [np.array([4, 5]), [4, 5.5]]
    logprobs: Any = np.zeros(2)
    with sdk.trajectory() as t:
        for ids in given:
            with t.step(["q"], model="demo") as s:
                s.response("x", prompt_token_ids=[1], token_ids=ids, logprobs=logprobs, policy_version=3)
    whole, without = sink.of("steps")
    assert [type(one) for one in whole["response_token_ids"]] == [int, int]
    assert (whole["fidelity"], without["fidelity"], without["response"]["content"]) == ("token", "text", "x")


@pytest.mark.parametrize("decorate", [sdk.trajectory, sdk.sub_agent])
def test_decorators_need_no_parentheses(sink: sdk.MemorySink, decorate: Callable[[Any], Any]) -> None:
    @decorate
    def work(what: str) -> str:
        return f"{what} in {sdk.current().id}"

    assert work("done").startswith("done in ")
    assert [entry["end"] for entry in sink.of("feedback")] == ["terminated"]


def test_what_is_not_recorded_is_told_with_what_to_do_and_counted(
    sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    def told(what: str) -> int:
        return sum(what in record.message for record in caplog.records)

    with sdk.trajectory(consent="yes") as t:  # type: ignore[call-overload]
        assert not t.recorded
        t.reward("outcome", float("nan"))
    assert told("consent must be one of train, analyse, none, not 'yes'")
    with sdk.trajectory() as t:
        t.reward("outcome", float("nan"))
        t.reward("", 1.0)
        t.feedback("thumbs")
        assert told("must be a finite number")
        assert told("needs a name and a value") == 2
        active = sdk.recorder()
        assert active is not None
        assert active.counts["refused"] == 4
        sdk.feedback("", "merged", 1.0)
        assert told("needs the id of a trajectory")
        s = t.step(["q"])
        s.response("x")
        s.reward("x", 1.0)
        s.tool_call("x")
        assert told("it belongs inside the step's block") == 3
        with s:
            s.response({"choices": []})
        assert told("give it to `completion`")
        with s:
            pass
        assert told("is entered once")
    assert [entry["name"] for entry in sink.of("feedback")] == ["end"]
    assert len(sink.of("steps")) == 1


def test_a_generator_is_no_tool(sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    assert sdk.tool(numbers) is numbers
    assert "generator" in caplog.text


def test_generators_that_take_turns_leave_nothing_behind(sink: sdk.MemorySink) -> None:
    def agent(name: str) -> Iterator[str]:
        with sdk.trajectory(name):
            yield name
            yield sdk.current().about.task_id

    one, other, third = agent("one"), agent("other"), agent("third")
    next(one), next(other)
    assert list(one)
    next(third)
    assert next(other) == "third"  # the context is everybody's: hold the trajectory
    assert list(other) == []
    assert next(third) == "third"
    assert list(third) == []
    assert (sdk.current().recorded, sdk.current_step()) == (False, None)


async def test_tasks_that_outlive_their_step_and_readers_that_stop(sink: sdk.MemorySink) -> None:
    @sdk.tool
    async def look(until: asyncio.Event) -> None:
        await until.wait()

    over = asyncio.Event()
    async with sdk.trajectory() as t:
        async with t.step():
            task = asyncio.create_task(look(over))
            await asyncio.sleep(0)
        over.set()
        await task
        assert [(entry["name"], entry["step_index"]) for entry in sink.of("feedback")] == [("tool", 0)]

    async def agent() -> AsyncGenerator[int, None]:
        async with sdk.trajectory() as t, t.step():
            yield 1

    reading = agent()
    assert await anext(reading) == 1
    await asyncio.create_task(reading.aclose())  # as the loop closes it, in another context
    assert (sdk.current().recorded, sdk.current_step()) == (False, None)


def test_what_is_said_after_the_block(sink: sdk.MemorySink) -> None:
    with sdk.trajectory() as t:
        with t.step(["q"]) as s:
            s.response("x")
        s.tool_call("late", error=KeyError("x"))
        s.reward("format", 1.0)
        s.end("truncated")
    tool, form, end = sink.of("feedback")
    assert (tool["name"], tool["comment"], tool["category"], tool["step_index"]) == ("tool", "late", "KeyError", 0)
    assert (form["name"], form["step_index"], end["end"]) == ("format", 0, "truncated")
    assert sink.of("steps")[0]["end"] == "open"


def test_a_step_through_the_gateway_ends_its_trajectory_too(sink: sdk.MemorySink) -> None:
    with sdk.trajectory() as t, t.step() as s:
        s.end("truncated")
        s.headers()
    assert [entry["end"] for entry in sink.of("feedback")] == ["truncated"]


def test_headers_are_what_clients_can_send_and_the_gateway_takes(
    sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    with sdk.trajectory("t" * 300, user="Jos\xe9 100%", agent="50%", group_id="a\nb", trajectory_id="1") as t:
        headers = t.headers()
    assert {name: value for name, value in headers.items() if not value.isascii()} == {}
    assert identify([(k.encode(), v.encode()) for k, v in headers.items()], GatewaySettings()).user == "Jos\xe9 100%"
    assert headers["x-stepstream-agent"] == "50%"
    assert not headers.keys() & {"x-stepstream-task", "x-stepstream-group"}
    assert caplog.text.count("no header for") == 2


def test_steps_of_several_threads_are_compared_while_others_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, common = shared_prefix.PrefixTracker(), shared_prefix._common
    said = [new_message(role="user", content="q")]
    for index in range(3):
        shared.remember(index, said, new_message(role="assistant", content="x"), [])

    def meanwhile(one: Any, other: Any) -> int:
        shared.remember(9, said, new_message(role="assistant", content="y"), [])
        return common(one, other)

    monkeypatch.setattr(shared_prefix, "_common", meanwhile)
    assert shared.find(3, said, []).messages == 1


PROCESSES = """
import importlib, multiprocessing, os
from stepstream import sdk
from stepstream.config import Settings

class Told(sdk.MemorySink):
    def close(self, timeout_s):
        kind = "parent" if os.getpid() == first else "child"
        said = [f"{topic}:{record.get('name', 'step')}" for topic, _, record in self.events]
        os.write(1, f"{kind} {' '.join(said)}\\n".encode())

first = os.getpid()
importlib.import_module("stepstream.sdk.recorder").Recorder._connect = lambda recorder: Told()

@sdk.tool
def look():
    pass

def work():
    with sdk.trajectory(), sdk.current().step(["x"]):
        look()

def in_child(function):
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join()

in_child(work)
with sdk.trajectory(), sdk.current().step(["x"]):
    in_child(look)
"""


def test_processes_that_are_forked_deliver_what_they_say() -> None:
    """Children of `multiprocessing` end without what `atexit` knows, and have none of the parent's threads."""
    run = subprocess.run([sys.executable, "-c", PROCESSES], capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.stderr == ""
    assert run.stdout.splitlines() == [
        "child steps:step feedback:end",
        "child feedback:tool",
        "parent steps:step feedback:end",
    ]
