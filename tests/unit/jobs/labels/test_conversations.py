"""Text over conversations: each response that may be trained on once, behind all that was said before it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from label_runs import FEEDBACK, STEPS, Run, governed
from stream_records import as_governed, make_ending, make_steps

from stepstream.jobs.labels.build_label import without_content
from stepstream.jobs.labels.conversations import build_conversations
from stepstream.topics.events import Conversation, Step, new_message

NO_TOKENS: dict[str, Any] = {
    "fidelity": "text",
    "prompt_shared_tokens": 0,
    "prompt_shared_digest": None,
    "prompt_token_ids": [],
    "response_token_ids": [],
    "response_logprobs": [],
    "policy_spans": [],
}


def texts(count: int = 3, **fields: Any) -> list[Step]:
    """Governed steps of an append-only context, whose messages tell where they stand."""
    steps = [as_governed(step, trainable=False) for step in make_steps("t", count, **(NO_TOKENS | fields))]
    for index, step in enumerate(steps):
        step["governed"]["flags"] = ["fidelity:text"]
        step["messages"] = [new_message(role="user", content=f"q{index}")]
        step["response"] = new_message(role="assistant", content=f"a{index}")
    return steps


def contents_and_spans(conversation: Conversation) -> tuple[str, list[tuple[int, int]]]:
    words = " ".join(message["content"] for message in conversation["messages"])
    return words, [(span["message"], span["step_index"]) for span in conversation["spans"]]


def test_an_append_only_context_is_one_conversation() -> None:
    [conversation] = build_conversations(texts())
    assert contents_and_spans(conversation) == ("q0 a0 q1 a1 q2 a2", [(1, 0), (3, 1), (5, 2)])


def test_a_branch_repeats_the_shared_messages_and_is_trained_on_once() -> None:
    steps = texts()
    steps[2] |= {"prompt_shared_messages": 2, "prompt_shared_step": 0}
    assert [contents_and_spans(each) for each in build_conversations(steps)] == [
        ("q0 a0 q1 a1", [(1, 0), (3, 1)]),
        ("q0 a0 q2 a2", [(3, 2)]),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"governed": {"flags": ["fidelity:text", "redacted:email"]}},
        {"governed": None},
        {"consent": "analyse"},
        {"fidelity": "span"},
        {"loss_mask": [True, False]},
        {"prompt_shared_tokens": 3, "prompt_shared_messages": 0},
        {"prompt_shared_messages": 9},
        {"response": new_message(role="assistant")},
    ],
)
def test_untrainable_responses_are_context_only(change: dict[str, Any]) -> None:
    steps = texts(2)
    steps[1] |= change  # type: ignore[typeddict-item]
    assert [contents_and_spans(each) for each in build_conversations(steps)] == [("q0 a0", [(1, 0)])]


def test_other_tools_are_another_conversation() -> None:
    steps = texts(4)
    steps[0]["tool_definitions"], steps[2]["tool_definitions"] = "[1]", "[2]"
    first, second = build_conversations(steps)
    assert (first["tool_definitions"], contents_and_spans(first)) == ("[1]", ("q0 a0 q1 a1", [(1, 0), (3, 1)]))
    assert (second["tool_definitions"], contents_and_spans(second)[1]) == ("[2]", [(5, 2), (7, 3)])


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.booleans()), min_size=1, max_size=5))
def test_a_response_is_trained_on_at_most_once_after_its_whole_prompt(
    drawn: list[tuple[int, int, bool]],
) -> None:
    steps = texts(len(drawn))
    for index, (shared, before, clean) in enumerate(drawn):
        steps[index] |= {"prompt_shared_messages": shared, "prompt_shared_step": before if before < index else None}
        if not clean:
            steps[index]["governed"]["flags"].append("redacted:email")  # type: ignore[index]
    found = build_conversations(steps)
    spans = [(each, span) for each in found for span in each["spans"]]
    indices = [span["step_index"] for _, span in spans]
    assert len(indices) == len(set(indices))
    for conversation, span in spans:
        step = steps[span["step_index"]]
        assert conversation["messages"][span["message"]] == step["response"]
        assert span["message"] == step["prompt_shared_messages"] + 1
        assert drawn[span["step_index"]][2]
    for conversation in found:
        assert conversation["spans"][-1]["message"] == len(conversation["messages"]) - 1


@pytest.mark.parametrize(
    ("fields", "trainable"), [({}, True), ({"consent": "analyse"}, False), ({"fidelity": "span"}, False)]
)
def test_a_label_has_conversations_for_steps_without_tokens(fields: dict[str, Any], trainable: bool) -> None:
    flags = [f"fidelity:{(NO_TOKENS | fields)['fidelity']}"]
    steps = [governed(step, trainable=False, flags=flags) for step in make_steps("t", 2, **(NO_TOKENS | fields))]
    [label] = Run().labels(*((STEPS, step) for step in steps), (FEEDBACK, governed(make_ending("t", 2))))
    assert label["trainable"] is trainable
    assert [span["step_index"] for each in label["conversations"] for span in each["spans"]] == [0, 1] * trainable
    assert [step["trainable"] for step in label["steps"]] == [trainable] * 2
    assert label["sequences"] == []


def test_a_label_with_tokens_has_no_conversations() -> None:
    [label] = Run().labels(
        *((STEPS, governed(step)) for step in make_steps("t", 2)), (FEEDBACK, governed(make_ending("t", 2)))
    )
    assert (label["trainable"], label["conversations"]) == (True, [])


def test_an_erased_label_has_no_conversations() -> None:
    steps = [governed(step, trainable=False, flags=["fidelity:text"]) for step in make_steps("t", 2, **NO_TOKENS)]
    [label] = Run().labels(*((STEPS, step) for step in steps), (FEEDBACK, governed(make_ending("t", 2))))
    assert label["conversations"]
    assert without_content(label)["conversations"] == []
