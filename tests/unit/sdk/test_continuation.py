"""Test that a trajectory that is left and continued, here or in another process, keeps its count and ends once."""

import threading

import pytest

from stepstream import sdk

QUESTION = {"role": "user", "content": "what is a?"}
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {}}}]


def turn(t: sdk.Trajectory, messages: list[dict[str, str]], answer: str, tokens: list[int]) -> None:
    with t.step(messages, model="demo", tools=TOOLS) as s:
        s.response(answer, prompt_token_ids=tokens[:-1], token_ids=tokens[-1:], logprobs=[-0.5], policy_version=3)
    messages.append({"role": "assistant", "content": answer})


def test_a_reopened_trajectory_keeps_counting_and_ends_once(
    sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with sdk.trajectory("task", trajectory_id="session-1") as t, t.step([QUESTION]) as s:
            s.response("4")
    assert [step["step_index"] for step in sink.of("steps")] == [0, 1, 2]
    assert [entry["end"] for entry in sink.of("feedback")] == ["terminated"]
    assert caplog.text.count("suspend()") == 2


def test_another_tenants_trajectory_of_the_same_name_is_another_one(sink: sdk.MemorySink) -> None:
    for tenant in ("acme", "shop"):
        with sdk.trajectory("task", trajectory_id="session-1", tenant=tenant) as t, t.step([QUESTION]) as s:
            s.response("4")
    assert [(step["tenant"], step["step_index"]) for step in sink.of("steps")] == [("acme", 0), ("shop", 0)]
    assert len(sink.of("feedback")) == 2


def test_nested_blocks_of_one_trajectory_end_it_once(sink: sdk.MemorySink) -> None:
    with sdk.trajectory("task", trajectory_id="t1") as outer:
        with sdk.trajectory("task", trajectory_id="t1") as inner:
            assert inner is outer
        assert sink.of("feedback") == []
    assert [entry["end"] for entry in sink.of("feedback")] == ["terminated"]


@pytest.mark.parametrize("as_json", [False, True], ids=["handle", "JSON"])
def test_another_process_continues_after_the_last_step(sink: sdk.MemorySink, as_json: bool) -> None:
    messages, other = [QUESTION], sdk.MemorySink()
    with sdk.trajectory("task", agent="clerk", user="maria", trajectory_id="t1", tenant="acme") as t:
        turn(t, messages, "four", [1, 2, 3])
        handle = t.suspend()
    assert sink.of("feedback") == []

    sdk.configure(sink=other)  # forgets what this process knows, as another process does
    messages.append({"role": "user", "content": "sure?"})
    with sdk.resume(handle.to_json() if as_json else handle) as t:
        assert (t.id, t.last_index) == ("t1", 0)
        turn(t, messages, "yes", [1, 2, 3, 4, 5])
    (first,), (second,) = sink.of("steps"), other.of("steps")
    shared = {"step_index", "prompt_shared_messages", "prompt_shared_tokens", "prompt_token_ids", "tool_definitions"}
    assert {name: second[name] for name in shared} == {
        "step_index": 1,
        "prompt_shared_messages": 2,
        "prompt_shared_tokens": 3,
        "prompt_token_ids": [4],
        "tool_definitions": None,
    }
    same = ("trajectory_id", "tenant", "user", "agent", "task_id", "consent")
    assert [first[name] for name in same] == [second[name] for name in same]
    (end,) = other.of("feedback")
    assert (end["end"], end["last_step_index"]) == ("terminated", 1)


def test_a_changed_prompt_shares_nothing_with_a_handle(sink: sdk.MemorySink) -> None:
    with sdk.trajectory("task", trajectory_id="t1") as t:
        turn(t, [QUESTION], "four", [1, 2, 3])
        handle = t.suspend()
    sdk.configure(sink=sink)
    with sdk.resume(handle) as t:
        turn(t, [{"role": "user", "content": "edited"}, QUESTION], "yes", [9, 2, 3, 4])
    step = sink.of("steps")[1]
    assert (step["step_index"], step["prompt_shared_messages"], step["prompt_shared_tokens"]) == (1, 0, 0)
    assert len(step["messages"]) == 2
    assert step["tool_definitions"] is not None


def test_a_suspended_trajectory_continues_in_the_same_process(sink: sdk.MemorySink) -> None:
    scope = sdk.trajectory("task", trajectory_id="t1")
    for _ in range(3):
        with scope as t:
            turn(t, [QUESTION], "four", [1, 2])
            scope = sdk.resume(t.suspend())
    assert [step["step_index"] for step in sink.of("steps")] == [0, 1, 2]
    assert sink.of("feedback") == []


def test_a_left_trajectory_keeps_only_a_digest_of_its_newest_step(sink: sdk.MemorySink) -> None:
    messages = [QUESTION]
    with sdk.trajectory("task", trajectory_id="t1") as t:
        turn(t, messages, "four", [1, 2, 3])
    with sdk.trajectory("task", trajectory_id="t1") as t:
        turn(t, [*messages, QUESTION], "five", [1, 2, 3, 4])
    step = sink.of("steps")[1]
    assert (step["prompt_shared_messages"], step["prompt_shared_tokens"], len(step["messages"])) == (2, 3, 1)


def test_steps_after_a_suspension_are_refused_with_the_remedy(
    sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    with sdk.trajectory("task") as t:
        t.suspend()
        with t.step([QUESTION]) as s:
            s.response("4")
    assert sink.events == []
    assert "sdk.resume(handle)" in caplog.text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"trajectory_id": "t1", "info": {"consent": "no"}, "prefix": null}'])
def test_an_invalid_handle_records_nothing_and_raises_nothing(
    sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    with sdk.resume(text) as t, t.step([QUESTION]) as s:
        s.response("4")
    assert sink.events == []
    assert "`to_json` returned" in caplog.text


def test_sub_agents_name_the_step_that_is_known(sink: sdk.MemorySink) -> None:
    with sdk.trajectory("task") as t:
        turn(t, [QUESTION], "a", [1, 2])
        turn(t, [QUESTION], "b", [1, 2])
        with t.sub_agent("searcher") as child:
            turn(child, [QUESTION], "c", [1, 2])
    with sdk.trajectory("task") as t:
        t.headers()  # the gateway records and counts the steps
        with t.sub_agent("searcher") as child:
            assert "x-stepstream-parent-step" not in child.headers()
            assert child.headers()["x-stepstream-parent"] == t.id
    assert [step["parent_step_index"] for step in sink.of("steps")] == [None, None, 1]


def test_threads_that_reopen_one_trajectory_share_its_count(sink: sdk.MemorySink) -> None:
    def work() -> None:
        for _ in range(10):
            with sdk.trajectory("task", trajectory_id="t1") as t, t.step([QUESTION]) as s:
                s.response("4")

    with sdk.trajectory("task", trajectory_id="t1"):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(step["step_index"] for step in sink.of("steps")) == list(range(40))
    assert len(sink.of("feedback")) == 1
