"""Steps store only new content; invalid values and calls raise nothing."""

from typing import Any

import numpy as np
import pytest

from stepstream import sdk
from stepstream.topics.events import new_message
from stepstream.topics.ids import token_digest

QUESTION = {"role": "user", "content": "what is a + c?"}


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


@pytest.mark.parametrize("prompt", ["what is a?", {"role": "user", "content": "what is a?"}, ["what is a?"]])
def test_a_prompt_may_be_one_message(sink: sdk.MemorySink, prompt: Any) -> None:
    with sdk.trajectory() as t, t.step(prompt):
        pass
    assert sink.of("steps")[0]["messages"] == [new_message(role="user", content="what is a?")]


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
