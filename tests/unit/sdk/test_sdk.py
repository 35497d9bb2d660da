"""The SDK records valid steps and feedback, and its failures never reach the agent."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import PATIENCE_S

from stepstream import sdk
from stepstream.config import load
from stepstream.sdk.shared_prefix import PrefixTracker
from stepstream.topics.events import new_message
from stepstream.topics.ids import token_digest

QUESTION = {"role": "user", "content": "what is a + c?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"name": "a"}'}}


@sdk.tool
def get(name: str) -> int:
    return {"a": 4}[name]


@sdk.tool(name="fetch")
async def get_later(name: str) -> int:
    await asyncio.sleep(0)
    return {"a": 4}[name]


class Box:
    @sdk.tool
    def look(self, where: str = "in") -> dict[str, object]:
        return {"found": {1, 2} and where}


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


def test_results_are_matched_to_calls_of_a_later_response(sink: sdk.MemorySink) -> None:
    other = {"id": "c2", "type": "function", "function": {"name": "get", "arguments": '{ "name": "b" }'}}
    with sdk.trajectory() as t, t.step() as s:
        s.tool_call("get", {"name": "b"}, error=KeyError("b"))
        get("a")
        s.response("two calls", tool_calls=[CALL, other])
        s.tool_call("get", {"name": "z"}, result="one too many")
    calls = sink.of("steps")[0]["response"]["tool_calls"]
    assert [(c["call_id"], c["result"], c["error"]) for c in calls[:2]] == [("c1", "4", None), ("c2", None, "KeyError")]
    assert calls[2]["result"] == "one too many"


async def test_tools_without_a_response_become_calls_of_the_step(sink: sdk.MemorySink) -> None:
    with sdk.trajectory() as t, t.step() as s:
        await get_later("a")
        s.tool_call("search", {"q": 1}, result={"hits": []}, duration_ms=3)
        Box().look()
    calls = sink.of("steps")[0]["response"]["tool_calls"]
    assert [(c["name"], c["arguments"], c["result"]) for c in calls] == [
        ("fetch", '{"name":"a"}', "4"),
        ("search", '{"q":1}', '{"hits":[]}'),
        ("look", "{}", '{"found":"in"}'),
    ]
    assert all(call["call_id"] for call in calls)


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


def test_steps_store_only_new_tokens(sink: sdk.MemorySink) -> None:
    with sdk.trajectory() as t:
        for prompt, response in (([1, 2, 3], [4, 5]), ([1, 2, 3, 4, 5, 6], [7]), ([1, 2, 9], [8])):
            with t.step([str(len(prompt))], model="demo") as s:
                logprobs = [-0.5] * len(response)
                s.response("x", prompt_token_ids=prompt, token_ids=response, logprobs=logprobs, policy_version=3)
        with t.step() as s:
            s.response("y", token_ids=[1], logprobs=[-0.1])
    one, two, three, four = sink.of("steps")
    assert (one["prompt_token_ids"], one["response_token_ids"]) == ([1, 2, 3], [4, 5])
    assert one["prompt_shared_digest"] is None
    assert (two["prompt_token_ids"], two["prompt_shared_tokens"]) == ([6], 5)
    assert two["prompt_shared_digest"] == token_digest([1, 2, 3, 4, 5])
    assert (three["prompt_token_ids"], three["prompt_shared_tokens"]) == ([9], 2)
    assert two["policy_spans"] == [{"start": 0, "end": 1, "model": "demo", "version": 3}]
    assert (four["fidelity"], four["response_token_ids"], four["response"]["content"]) == ("text", [], "y")


def test_tool_definitions_are_stored_only_when_they_change(sink: sdk.MemorySink) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    with sdk.trajectory() as t:
        prompt: list[str] = []
        for offered in (tools, tools, [], tools):
            prompt = [*prompt, "go on"]
            with t.step(prompt, tools=offered) as s:
                s.response("done")
    definitions = [step["tool_definitions"] for step in sink.of("steps")]
    all_tools = '[{"type":"function","function":{"name":"look","parameters":{}}}]'
    assert definitions == [all_tools, None, "[]", all_tools]


def test_objects_of_client_libraries_are_converted(sink: sdk.MemorySink) -> None:
    from openai.types.chat import ChatCompletion

    message = {"role": "assistant", "content": "hi", "tool_calls": []}
    reply = ChatCompletion.model_validate(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m-1",
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": message},
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        }
    )
    with sdk.trajectory() as t:
        with t.step([QUESTION], model="m") as s:
            s.completion(reply)
        with t.step(
            [QUESTION, reply.choices[0].message, {"role": "user", "content": [{"type": "text", "text": "go"}]}]
        ):
            pass
    first, second = sink.of("steps")
    assert (first["response"]["content"], first["model"], first["usage_prompt_tokens"]) == ("hi", "m-1", 3)
    assert (second["prompt_shared_messages"], second["messages"][0]["content"]) == (2, "go")


def test_custom_and_legacy_function_calls_are_converted(sink: sdk.MemorySink) -> None:
    custom = {"id": "1", "type": "custom", "custom": {"name": "run", "input": "1+1"}}
    old = {"role": "assistant", "content": None, "function_call": {"name": "get", "arguments": "{}"}}
    with sdk.trajectory() as t, t.step([old, {"role": "function", "name": "get", "content": "4"}]) as s:
        s.response({"role": "assistant", "content": None, "tool_calls": [custom]})
    [step] = sink.of("steps")
    asked, answered = step["messages"]
    assert [(c["call_id"], c["name"], c["arguments"]) for c in asked["tool_calls"]] == [("get", "get", "{}")]
    assert (answered["role"], answered["tool_call_id"]) == ("tool", "get")
    [call] = step["response"]["tool_calls"]
    assert (call["call_id"], call["name"], call["arguments"]) == ("1", "run", '{"input":"1+1"}')


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


def test_feedback_about_an_earlier_trajectory_is_sent(sink: sdk.MemorySink) -> None:
    sdk.feedback("t9", "merged", 1.0, source="business", comment="three days later", tenant="acme")
    (entry,) = sink.of("feedback")
    assert (entry["trajectory_id"], entry["value"], entry["tenant"]) == ("t9", 1.0, "acme")


def test_invalid_values_raise_nothing(sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture) -> None:
    class Bad:
        def __repr__(self) -> str:
            raise ValueError("no looks")

    with sdk.trajectory() as t:
        with t.step([Bad(), QUESTION], max_tokens="many") as s:  # type: ignore[arg-type]
            s.response(Bad())
            s.completion({})
            s.tool_call("x", Bad())
            s.response("fine", prompt_token_ids=[1], token_ids=[1, 2], logprobs=[0.0], policy_version=1)
        t.reward("outcome", "no number")  # type: ignore[arg-type]
    assert "not recorded" in caplog.text
    sink.events = [event for event in sink.events if event[0] != "steps"]  # max_tokens="many" fits no schema


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


def test_generators_are_returned_undecorated(caplog: pytest.LogCaptureFixture) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    assert sdk.trajectory()(numbers) is numbers
    assert "generator" in caplog.text


@pytest.mark.parametrize("config", ["setting", "code"])
def test_a_disabled_sdk_records_nothing(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if config == "setting":
        monkeypatch.setenv("STEPSTREAM_SDK_ENABLED", "false")
        sdk.configure()
    else:
        sdk.configure(enabled=False)
    try:

        @sdk.trajectory("x")
        def work() -> int:
            t = sdk.current()
            with t.step([QUESTION]) as s, t.sub_agent() as child:
                s.response("x")
                assert s.headers() == t.headers() == child.headers() == {}
                s.tool_call("x", 1)
                child.reward("y", 1)
                s.reward("y", 1)
                s.end()
            t.end()
            return get("a")

        assert work() == 4
        assert sdk.recorder() is None
        assert sdk.flush() == 0
        sdk.feedback("t", "x", 1.0)
    finally:
        sdk.close()


def test_invalid_settings_switch_the_sdk_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("STEPSTREAM_SDK_MEMORY_MB", "lots")
    sdk.configure()
    with sdk.trajectory() as t:
        assert not t.is_recorded
    assert "nothing is recorded: settings" in caplog.text
    sdk.close()


def test_a_forked_child_has_a_new_recorder(sink: sdk.MemorySink) -> None:
    with sdk.trajectory():
        pass
    code = (
        "import os\n"
        "from stepstream import sdk\n"
        "from stepstream.config import Settings\n"
        "sink = sdk.MemorySink(); sdk.configure(Settings(), sink=sink)\n"
        "parent = sdk.recorder()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sdk.configure(Settings(), sink=sdk.MemorySink())\n"
        "    ok = sdk.recorder() is not parent\n"
        "    os._exit(0 if ok else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert sdk.recorder() is parent\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_a_disabled_sdk_imports_no_heavy_package() -> None:
    code = (
        "import sys\nfrom stepstream import sdk\n"
        "with sdk.trajectory() as t, t.step(['x']) as s:\n    s.response('y')\n"
        "heavy = {'torch', 'faust', 'confluent_kafka', 'fastavro', 'pydantic', 'asyncio'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    off = os.environ | {"STEPSTREAM_SDK_ENABLED": "false"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=off, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert run.stdout.split() == []


def test_without_kafka_the_process_exits_and_logs_dropped_events() -> None:
    code = (
        "import logging\nlogging.basicConfig()\n"
        "from stepstream import sdk\n"
        "with sdk.trajectory() as t, t.step(['x']) as s:\n    s.response('y')\n"
    )
    env = {
        **os.environ,
        "STEPSTREAM_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "STEPSTREAM_SCHEMA_REGISTRY_URL": "http://127.0.0.1:1",
        "STEPSTREAM_SDK_FLUSH_S": "0.2",
    }
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0
    assert "dropped 2 events" in ended.stderr


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("ab"), max_size=4), st.lists(st.integers(0, 2), max_size=5)), max_size=6
    )
)
def test_shared_prefixes_are_contained_in_the_earlier_step(rounds: list[tuple[list[str], list[int]]]) -> None:
    tracker = PrefixTracker()
    contexts: list[tuple[list[str], list[int]]] = []
    for index, (texts, tokens) in enumerate(rounds):
        messages = [new_message(role="user", content=text) for text in texts]
        shared = tracker.find(index, messages, tokens)
        if shared.messages or shared.tokens:
            earlier = index - 1 if shared.step is None else shared.step
            assert earlier < index
            assert contexts[earlier][0][: shared.messages] == texts[: shared.messages]
            assert contexts[earlier][1][: shared.tokens] == tokens[: shared.tokens]
            assert shared.digest == (token_digest(tokens[: shared.tokens]) if shared.tokens else None)
        tracker.add_step(index, messages, new_message(role="assistant", content="c"), [*tokens, 3])
        contexts.append(([*texts, "c"], [*tokens, 3]))


def test_the_spool_is_set_by_the_environment() -> None:
    assert load({"STEPSTREAM_SDK_SPOOL": "x"}).sdk.spool is not None
