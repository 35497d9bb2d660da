"""The SDK into a list: what an agent's program says becomes valid steps and feedback, and cannot hurt the agent."""

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


def test_a_trajectory(sink: sdk.MemorySink) -> None:
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
    assert not sdk.current().recorded


async def test_an_async_trajectory_with_parallel_sub_agents(sink: sdk.MemorySink) -> None:
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


def test_a_tool_may_run_before_its_response_is_told(sink: sdk.MemorySink) -> None:
    other = {"id": "c2", "type": "function", "function": {"name": "get", "arguments": '{ "name": "b" }'}}
    with sdk.trajectory() as t, t.step() as s:
        s.tool_call("get", {"name": "b"}, error=KeyError("b"))
        get("a")
        s.response("two calls", tool_calls=[CALL, other])
        s.tool_call("get", {"name": "z"}, result="one too many")
    calls = sink.of("steps")[0]["response"]["tool_calls"]
    assert [(c["call_id"], c["result"], c["error"]) for c in calls[:2]] == [("c1", "4", None), ("c2", None, "KeyError")]
    assert calls[2]["result"] == "one too many"


async def test_what_a_tool_says_before_the_response_is_kept_by_its_step(sink: sdk.MemorySink) -> None:
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


def test_exceptions_are_recorded_and_go_on(sink: sdk.MemorySink) -> None:
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


def test_a_step_or_a_word_may_end_the_trajectory(sink: sdk.MemorySink) -> None:
    with sdk.trajectory() as t, t.step() as s:
        s.end("terminated")
    with sdk.trajectory() as t:
        t.end("truncated")
    assert sink.of("steps")[0]["end"] == "terminated"
    assert [entry["end"] for entry in sink.of("feedback")] == ["truncated"]


def test_tokens(sink: sdk.MemorySink) -> None:
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


def test_tools_are_told_where_they_change(sink: sdk.MemorySink) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    with sdk.trajectory() as t:
        said: list[str] = []
        for offered in (tools, tools, [], tools):
            said = [*said, "go on"]
            with t.step(said, tools=offered) as s:
                s.response("done")
    told = [step["tool_definitions"] for step in sink.of("steps")]
    whole = '[{"type":"function","function":{"name":"look","parameters":{}}}]'
    assert told == [whole, None, "[]", whole]


def test_objects_of_client_libraries(sink: sdk.MemorySink) -> None:
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


def test_calls_of_every_shape(sink: sdk.MemorySink) -> None:
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


def test_through_the_gateway_the_sdk_adds_what_the_gateway_cannot_see(sink: sdk.MemorySink) -> None:
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


def test_late_feedback(sink: sdk.MemorySink) -> None:
    sdk.feedback("t9", "merged", 1.0, source="business", comment="three days later", tenant="acme")
    (entry,) = sink.of("feedback")
    assert (entry["trajectory_id"], entry["value"], entry["tenant"]) == ("t9", 1.0, "acme")


def test_nothing_reaches_the_agent(sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture) -> None:
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


def test_threads_have_trajectories_of_their_own(sink: sdk.MemorySink) -> None:
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


def test_generators_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    assert sdk.trajectory()(numbers) is numbers
    assert "generator" in caplog.text


@pytest.mark.parametrize("how", ["setting", "code"])
def test_switched_off_it_does_nothing(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_settings_that_cannot_be_used_switch_it_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STEPSTREAM_SDK_MEMORY_MB", "lots")
    sdk.configure()
    with sdk.trajectory() as t:
        assert not t.recorded
    assert "nothing is recorded: settings" in caplog.text
    sdk.close()


def test_a_forked_child_begins_anew(sink: sdk.MemorySink) -> None:
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


def test_importing_it_is_light_and_switched_off_it_needs_no_more() -> None:
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


def test_without_kafka_the_process_ends_in_time_and_says_what_it_lost() -> None:
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
    assert "2 events LOST" in ended.stderr


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("ab"), max_size=4), st.lists(st.integers(0, 2), max_size=5)), max_size=6
    )
)
def test_sharing_never_claims_what_is_not_there(rounds: list[tuple[list[str], list[int]]]) -> None:
    sharing = PrefixTracker()
    whole: list[tuple[list[str], list[int]]] = []
    for index, (texts, tokens) in enumerate(rounds):
        messages = [new_message(role="user", content=text) for text in texts]
        shared = sharing.find(index, messages, tokens)
        if shared.messages or shared.tokens:
            of = index - 1 if shared.step is None else shared.step
            assert of < index
            assert whole[of][0][: shared.messages] == texts[: shared.messages]
            assert whole[of][1][: shared.tokens] == tokens[: shared.tokens]
            assert shared.digest == (token_digest(tokens[: shared.tokens]) if shared.tokens else None)
        sharing.remember(index, messages, new_message(role="assistant", content="c"), [*tokens, 3])
        whole.append(([*texts, "c"], [*tokens, 3]))


def test_settings_of_the_sdk() -> None:
    assert load({"STEPSTREAM_SDK_SPOOL": "x"}).sdk.spool is not None
