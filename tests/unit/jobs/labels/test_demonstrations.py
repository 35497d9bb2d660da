"""Demonstrations in labels: the newest usable one of each step, in any order of arrival."""

from typing import Any

import pytest
from fold_harness import MemoryChanges
from hypothesis import given, settings
from hypothesis import strategies as st
from label_runs import FEEDBACK, STEPS, Run, governed, whole
from stream_records import make_ending, make_feedback, make_steps

from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicy
from stepstream.jobs.labels.demonstrations import choose_demonstrations
from stepstream.topics.events import Feedback, new_message

SAID = "the capital is Ulm"


def showing(text: str | None = SAID, *, number: int = 1, **fields: Any) -> Feedback:
    values: dict[str, Any] = {"name": "correction", "source": "user", "demonstration": text} | fields
    return make_feedback("t", None, number=number, **values)


def told(feedback: Feedback, **governance: Any) -> tuple[str, Any]:
    return FEEDBACK, governed(feedback, **governance)


def shown(label: Any) -> list[str | None]:
    return [step["demonstration"] for step in label["steps"]]


def test_a_demonstration_without_a_step_counts_for_the_last_response() -> None:
    run = Run()
    one, all_of_it = governed(showing(step_index=1)), governed(showing("ends so", number=2))
    [label] = run.labels((FEEDBACK, one), (FEEDBACK, all_of_it), *whole("t"))
    assert shown(label) == [None, SAID, "ends so"]
    assert [step["demonstration_event_id"] for step in label["steps"]] == [
        None,
        one["event_id"],
        all_of_it["event_id"],
    ]
    assert (label["trainable"], label["flags"], label["reward"]) == (True, [], 1.0)
    assert label["occurred_at_us"] == all_of_it["occurred_at_us"]


def test_a_failed_call_is_not_the_last_response() -> None:
    steps = make_steps("t", 3)
    steps[2] |= {"error": "Timeout", "response": new_message(role="assistant"), "response_token_ids": []}
    steps[2] |= {"response_logprobs": [], "policy_spans": [], "fidelity": "text", "prompt_shared_tokens": 0}
    run = Run()
    [label] = run.labels(*((STEPS, governed(step)) for step in steps), told(showing()), told(make_ending("t", 3)))
    assert shown(label) == [None, SAID, None]


def test_a_late_demonstration_and_its_retraction_give_revisions() -> None:
    run = Run()
    run.labels(*whole("t"))
    [label] = run.labels(told(showing(step_index=0)))
    assert (label["revision"], shown(label)) == (2, [SAID, None, None])
    assert run.labels(told(showing(step_index=0))) == []
    run.restart()
    [label] = run.labels(told(showing("better", number=2, step_index=0)))
    assert (label["revision"], shown(label)) == (3, ["better", None, None])
    [label] = run.labels(told(showing(None, number=3, retracts=showing(number=2)["event_id"])))
    assert (label["revision"], shown(label)) == (4, [SAID, None, None])


def test_a_demonstration_governed_again_replaces_the_old_one() -> None:
    run = Run()
    run.labels(*whole("t"), told(showing()))
    [label] = run.labels((FEEDBACK, governed(showing("it is <NAME:1>"), 1, trainable=False, flags=["redacted:name"])))
    assert (shown(label), label["flags"]) == ([None] * 3, ["demonstration:redacted"])
    [label] = run.labels((FEEDBACK, governed(showing(None), 2)))
    assert (shown(label), label["flags"]) == ([None] * 3, [])
    assert not any(key.startswith(b"d") for key in run.state.content)


@pytest.mark.parametrize(
    ("fields", "governance", "fault"),
    [
        ({"consent": "analyse"}, {"trainable": False}, "consent"),
        ({}, {"trainable": False, "flags": ["redacted:email"]}, "redacted"),
        ({"source": "verifier", "producer": "agent/1"}, {}, "unproven"),
        ({"tool_call_id": "c1"}, {}, "tool_call"),
        ({"user": "bob"}, {}, "person"),
        ({"step_index": 7}, {}, "no_step"),
    ],
)
def test_an_unusable_demonstration_is_flagged_and_an_older_one_counts(
    fields: dict[str, Any], governance: dict[str, Any], fault: str
) -> None:
    run = Run()
    older, newer = showing(number=1, user="ann"), showing("no", number=2, **fields)
    [label] = run.labels(*whole("t", user="ann"), told(older), told(newer, **governance))
    assert (shown(label), label["flags"]) == ([None, None, SAID], [f"demonstration:{fault}"])
    assert (label["consent"], label["trainable"]) == ("train", True)


def test_a_demonstration_of_another_user_of_the_trajectory_counts() -> None:
    """The label is sealed under their key too."""
    run = Run()
    [first, second, third, end] = whole("t", user="ann")
    shared = [first, (STEPS, second[1] | {"user": "bob"}), third, end]
    [label] = run.labels(*shared, told(showing(user="bob")), told(showing(number=2, step_index=0, user="eve")))
    assert (shown(label), label["flags"]) == ([None, None, SAID], ["demonstration:person"])
    assert (label["user"], label["other_users"]) == ("ann", ["bob"])


def test_an_untrainable_label_has_no_demonstrations() -> None:
    run = Run()
    run.labels(*whole("t", user="ann"), told(showing()))
    run.rules.change(ann="analyse")
    [label] = run.later()
    assert (label["trainable"], shown(label)) == (False, [None] * 3)
    run.rules.change(ann="train")
    [label] = run.later()
    assert shown(label) == [None, None, SAID]
    run.rules.said = TrajectoryPolicy(keep_out=("truncated",))
    [label] = run.labels(*((STEPS, e) for _, e in whole("u", finish_reason="length")[:3]), *told_of("u"))
    assert (label["trainable"], shown(label)) == (False, [None] * 3)


def told_of(name: str) -> list[tuple[str, Any]]:
    mine = {"trajectory_id": name}
    return [(FEEDBACK, governed(showing() | mine)), (FEEDBACK, governed(make_ending(name, 3)))]


def test_an_erasure_removes_demonstrations() -> None:
    run = Run()
    run.labels(*whole("t", user="ann"), told(showing(user="ann")))
    assert any(SAID.encode() in value for value in run.state.content.values())
    run.rules.erase("ann")
    [label] = run.later()
    assert (shown(label), label["flags"]) == ([None] * 3, ["erased"])
    assert [step["demonstration_event_id"] for step in label["steps"]] == [None] * 3
    assert not any(SAID.encode() in value for value in run.state.content.values())


def test_a_demonstration_with_a_destroyed_key_is_left_out() -> None:
    run = Run()
    run.labels(*whole("t"), told(showing()))
    # As the codec reads it once the key of its person is destroyed.
    [key] = [key for key in run.state.content if key.startswith(b"d")]
    gone = governed(showing(None)) | {"seal_key": "k"}
    changes = MemoryChanges(run.state)
    changes.put(key, run.codec.encode(FEEDBACK, gone))
    run.state.write(changes)
    run.restart()
    [label] = run.labels(told(make_feedback("t", 0.0, number=5)))
    assert (shown(label), label["flags"]) == ([None] * 3, [])


ANY = st.lists(
    st.builds(
        lambda number, at, step, text, consent, back: (number, at, step, text, consent, back),
        st.integers(1, 4),
        st.integers(0, 2),
        st.sampled_from([None, 0, 1, 2, 9]),
        st.sampled_from(["a", "b", "", None]),
        st.sampled_from(["train", "analyse"]),
        st.sampled_from([None, 1, 2]),
    ),
    max_size=5,
    unique_by=lambda drawn: drawn[0],
)


def drawn_feedback(drawn: Any) -> Feedback:
    number, at, step, text, consent, back = drawn
    fields: dict[str, Any] = {"step_index": step, "consent": consent, "occurred_at_us": 1_760_000_070_000_000 + at}
    return showing(text, number=number, retracts=back and showing(number=back)["event_id"], **fields)


@settings(max_examples=60)
@given(ANY, st.randoms(use_true_random=False))
def test_the_order_of_feedback_does_not_matter(all_drawn: list[Any], rng: Any) -> None:
    events = [*whole("t"), *(told(drawn_feedback(drawn)) for drawn in all_drawn)]
    labels = []
    for _ in range(2):
        run = Run()
        made = []
        for place, event in enumerate(events):
            made += run.labels(event)
            if place % 3 == 2:
                run.restart()
        labels.append({**made[-1], "revision": 0, "event_id": ""})
        rng.shuffle(events)
    assert labels[0] == labels[1]


@given(ANY)
def test_the_newest_usable_demonstration_counts(all_drawn: list[Any]) -> None:
    given = [governed(f) for f in map(drawn_feedback, all_drawn) if f["demonstration"]]
    found = choose_demonstrations(make_steps("t", 3), given, ()).by_step
    for index in range(3):
        about = [f for f in given if f["step_index"] == index or (index == 2 and f["step_index"] is None)]
        usable = [f for f in about if f["consent"] == "train"]
        newest = max(usable, key=lambda f: (f["occurred_at_us"], f["event_id"]), default=None)
        assert found.get(index) == newest
