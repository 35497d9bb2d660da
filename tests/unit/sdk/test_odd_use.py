"""The SDK survives unusual use: odd values, missing blocks, interleaved generators, forked processes."""

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
def test_any_result_of_a_tool_is_recorded_as_text(sink: sdk.MemorySink, result: Any, text: str) -> None:
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
def test_messages_of_other_apis_are_converted(raw: Any, role: str, content: str, call: str) -> None:
    message = message_of(raw)
    calls = [f"{one['call_id']} {one['name']} {one['arguments']}" for one in message["tool_calls"]]
    assert (message["role"], message["content"], calls) == (role, content, [call] if call else [])
    assert message["tool_call_id"] == ("c" if role == "tool" else None)


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


def test_tokens_may_be_arrays_and_invalid_tokens_leave_a_text_step(sink: sdk.MemorySink) -> None:
    given: list[Any] = [np.array([4, 5]), [4, 5.5]]
    logprobs: Any = np.zeros(2)
    with sdk.trajectory() as t:
        for ids in given:
            with t.step(["q"], model="demo") as s:
                s.response("x", prompt_token_ids=[1], token_ids=ids, logprobs=logprobs, policy_version=3)
    with_tokens, without = sink.of("steps")
    assert [type(one) for one in with_tokens["response_token_ids"]] == [int, int]
    assert (with_tokens["fidelity"], without["fidelity"], without["response"]["content"]) == ("token", "text", "x")


@pytest.mark.parametrize("decorate", [sdk.trajectory, sdk.sub_agent])
def test_decorators_need_no_parentheses(sink: sdk.MemorySink, decorate: Callable[[Any], Any]) -> None:
    @decorate
    def work(what: str) -> str:
        return f"{what} in {sdk.current().id}"

    assert work("done").startswith("done in ")
    assert [entry["end"] for entry in sink.of("feedback")] == ["terminated"]


def test_invalid_calls_are_logged_with_the_remedy_and_counted(
    sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    def logged(text: str) -> int:
        return sum(text in record.message for record in caplog.records)

    with sdk.trajectory(consent="yes") as t:  # type: ignore[call-overload]
        assert not t.is_recorded
        t.reward("outcome", float("nan"))
    assert logged("consent must be one of train, analyse, none, not 'yes'")
    with sdk.trajectory() as t:
        t.reward("outcome", float("nan"))
        t.reward("", 1.0)
        t.feedback("thumbs")
        assert logged("must be a finite number")
        assert logged("needs a name and a value") == 2
        active = sdk.recorder()
        assert active is not None
        assert active.counts["refused"] == 4
        sdk.feedback("", "merged", 1.0)
        assert logged("needs the id of a trajectory")
        s = t.step(["q"])
        s.response("x")
        s.reward("x", 1.0)
        s.tool_call("x")
        assert logged("outside the step's block") == 3
        with s:
            s.response({"choices": []})
        assert logged("give it to `completion`")
        with s:
            pass
        assert logged("was entered twice")
    assert [entry["name"] for entry in sink.of("feedback")] == ["end"]
    assert len(sink.of("steps")) == 1


def test_a_generator_cannot_be_a_tool(sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    assert sdk.tool(numbers) is numbers
    assert "generator" in caplog.text


def test_interleaved_generators_leave_no_open_trajectory(sink: sdk.MemorySink) -> None:
    def agent(name: str) -> Iterator[str]:
        with sdk.trajectory(name):
            yield name
            yield sdk.current().info.task_id

    one, other, third = agent("one"), agent("other"), agent("third")
    next(one), next(other)
    assert list(one)
    next(third)
    assert next(other) == "third"  # generators share one context
    assert list(other) == []
    assert next(third) == "third"
    assert list(third) == []
    assert (sdk.current().is_recorded, sdk.current_step()) == (False, None)


async def test_a_task_may_outlive_its_step_and_a_reader_may_stop_early(sink: sdk.MemorySink) -> None:
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
    assert (sdk.current().is_recorded, sdk.current_step()) == (False, None)


def test_calls_after_the_block_become_feedback(sink: sdk.MemorySink) -> None:
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


def test_a_step_through_the_gateway_ends_its_trajectory(sink: sdk.MemorySink) -> None:
    with sdk.trajectory() as t, t.step() as s:
        s.end("truncated")
        s.headers()
    assert [entry["end"] for entry in sink.of("feedback")] == ["truncated"]


def test_headers_are_ascii_and_the_gateway_accepts_them(sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture) -> None:
    with sdk.trajectory("t" * 300, user="Jos\xe9 100%", agent="50%", group_id="a\nb", trajectory_id="1") as t:
        headers = t.headers()
    assert {name: value for name, value in headers.items() if not value.isascii()} == {}
    assert identify([(k.encode(), v.encode()) for k, v in headers.items()], GatewaySettings()).user == "Jos\xe9 100%"
    assert headers["x-stepstream-agent"] == "50%"
    assert not headers.keys() & {"x-stepstream-task", "x-stepstream-group"}
    assert caplog.text.count("no header for") == 2


def test_steps_may_be_added_during_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, common = shared_prefix.PrefixTracker(), shared_prefix._common_length
    messages = [new_message(role="user", content="q")]
    for index in range(3):
        tracker.add_step(index, messages, new_message(role="assistant", content="x"), [])

    def meanwhile(one: Any, other: Any) -> int:
        tracker.add_step(9, messages, new_message(role="assistant", content="y"), [])
        return common(one, other)

    monkeypatch.setattr(shared_prefix, "_common_length", meanwhile)
    assert tracker.find(3, messages, []).messages == 1


PROCESSES = """
import importlib, multiprocessing, os
from stepstream import sdk
from stepstream.config import Settings

class PrintingSink(sdk.MemorySink):
    def close(self, timeout_s):
        kind = "parent" if os.getpid() == first else "child"
        events = [f"{topic}:{record.get('name', 'step')}" for topic, _, record in self.events]
        os.write(1, f"{kind} {' '.join(events)}\\n".encode())

first = os.getpid()
importlib.import_module("stepstream.sdk.recorder").Recorder._connect = lambda recorder: PrintingSink()

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


def test_forked_processes_deliver_their_own_events() -> None:
    """Children of `multiprocessing` run no `atexit` functions and lack the parent's threads."""
    run = subprocess.run([sys.executable, "-c", PROCESSES], capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.stderr == ""
    assert run.stdout.splitlines() == [
        "child steps:step feedback:end",
        "child feedback:tool",
        "parent steps:step feedback:end",
    ]
