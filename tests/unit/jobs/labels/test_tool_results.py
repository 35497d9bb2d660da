"""Results of tools find the step that called, in any shape of conversation, and no other."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from label_runs import FEEDBACK, STEPS, Run, governed
from stream_records import make_ending, make_feedback, make_steps

from stepstream.jobs.labels.tool_results import attach_tool_results
from stepstream.topics.events import Message, Step, new_message, new_tool_call

TEMPLATE = make_steps("t", 1)[0]


def step(index: int, messages: list[Message], *calls: str, shared: int = 0, after: int | None = None) -> Step:
    made = [new_tool_call(call_id=call, name="get", arguments=f'{{"step": {index}}}') for call in calls]
    fields: dict[str, Any] = {
        "step_index": index,
        "prompt_shared_step": after,
        "prompt_shared_messages": shared,
        "messages": messages,
        "response": new_message(role="assistant", tool_calls=made),
    }
    return TEMPLATE | fields  # type: ignore[return-value]


def asks() -> Message:
    return new_message(role="user", content="what?")


def result(call: str, content: str) -> Message:
    return new_message(role="tool", tool_call_id=call, content=content)


def results(steps: list[Step]) -> list[list[str | None]]:
    return [[call["result"] for call in calls] for calls in attach_tool_results(steps)]


def test_feedback_reports_the_error_of_a_call() -> None:
    """An agent behind the gateway has no other way: a chat message does not say if its tool failed."""
    run = Run()
    steps = [step(0, [asks()], "a", "b"), step(1, [result("a", "?"), result("b", "2")], shared=2)]
    failed = make_feedback("t", None, number=1, name="tool_error", category="timeout", tool_call_id="a")
    events = [(STEPS, governed(one)) for one in steps] + [(FEEDBACK, governed(failed))]
    [label] = run.labels(*events, (FEEDBACK, governed(make_ending("t", 2))))
    assert [call["error"] for call in label["steps"][0]["tool_calls"]] == ["timeout", None]
    assert [(use["calls"], use["errors"]) for use in label["tools"]] == [(2, 1)]

    late = make_feedback("t", None, number=2, name="tool_error", comment="Refused", tool_call_id="b")
    [label] = run.labels((FEEDBACK, governed(late)))
    assert [call["error"] for call in label["steps"][0]["tool_calls"]] == ["timeout", "Refused"]
    [label] = run.labels((FEEDBACK, governed(make_feedback("t", None, number=3, retracts=late["event_id"]))))
    assert [call["error"] for call in label["steps"][0]["tool_calls"]] == ["timeout", None]


def test_parallel_calls_are_answered_by_id_in_any_order() -> None:
    steps = [step(0, [asks()], "a", "b", "c"), step(1, [result("b", "B"), result("a", "A")], shared=2)]
    assert results(steps) == [["A", "B", None], []]


def test_one_id_used_twice_in_one_response_is_answered_in_order() -> None:
    steps = [step(0, [asks()], "a", "a"), step(1, [result("a", "1"), result("a", "2"), result("a", "3")], shared=2)]
    assert results(steps) == [["1", "2"], []]


def test_a_repeated_id_means_the_nearest_call_of_the_conversation() -> None:
    steps = [
        step(0, [asks()], "a"),
        step(1, [result("a", "first")], "a", shared=2),
        step(2, [result("a", "second")], shared=4),
    ]
    assert results(steps) == [["first"], ["second"], []]


def test_a_branch_answers_the_call_that_it_still_holds() -> None:
    steps = [
        step(0, [asks()], "a"),
        step(1, [result("a", "first")], "a", shared=2),
        # Edited: goes back to before step 1's tool message, and answers step 0's call otherwise.
        step(2, [result("a", "edited")], "b", shared=2, after=1),
        step(3, [result("b", "B")], shared=4, after=2),
    ]
    assert results(steps) == [["first"], [None], ["B"], []]


def test_other_branches_and_roots_are_not_answered() -> None:
    steps = [step(0, [asks()], "a"), step(1, [asks()], "b"), step(2, [result("a", "A"), result("b", "B")], shared=2)]
    assert results(steps) == [[None], ["B"], []]


def test_a_conversation_sent_whole_again_answers_the_calls_that_it_repeats() -> None:
    steps = [step(0, [asks()], "a"), step(1, [asks()])]
    steps[1]["messages"] += [steps[0]["response"], result("a", "A")]
    assert results(steps) == [["A"], []]
    steps[1]["messages"][1] = new_message(
        role="assistant", tool_calls=[new_tool_call(call_id="a", name="get", arguments="{}")]
    )
    assert results(steps) == [[None], []]


def test_a_result_in_the_record_is_kept() -> None:
    steps = [step(0, [asks()], "a"), step(1, [result("a", "later")], shared=2)]
    steps[0]["response"]["tool_calls"][0] |= {"result": "known", "error": "Timeout"}
    assert attach_tool_results(steps)[0] == steps[0]["response"]["tool_calls"]
    assert results(steps[1:]) == [[]]


def test_the_record_is_not_changed() -> None:
    steps = [step(0, [asks()], "a"), step(1, [result("a", "A")], shared=2)]
    attach_tool_results(steps)
    assert steps[0]["response"]["tool_calls"][0]["result"] is None


@settings(max_examples=100)
@given(st.data())
def test_in_any_tree_a_result_goes_to_its_call_alone(data: st.DataObject) -> None:
    """Each step continues a whole earlier context and answers its calls; ids repeat all the time."""
    steps: list[Step] = []
    expected: list[list[str | None]] = []
    lengths: list[int] = []
    for index in range(data.draw(st.integers(1, 8))):
        calls = data.draw(st.lists(st.sampled_from("ab"), max_size=2, unique=True))
        parent = data.draw(st.integers(-1, index - 1))
        if parent < 0:
            steps.append(step(index, [asks()], *calls))
        else:
            above = steps[parent]["response"]["tool_calls"]
            answers = [result(call["call_id"], f"{index}") for call in above] or [asks()]
            for place, call in enumerate(expected[parent]):
                expected[parent][place] = f"{index}" if call is None else call
            steps.append(step(index, answers, *calls, shared=lengths[parent], after=parent))
        lengths.append((lengths[parent] if parent >= 0 else 0) + len(steps[-1]["messages"]) + 1)
        expected.append([None] * len(calls))
    assert results(steps) == expected
