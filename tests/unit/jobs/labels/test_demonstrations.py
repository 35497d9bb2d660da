"""Demonstrations in labels: the newest usable one of each step, in any order of arrival."""

from typing import Any

import pytest
from fold_harness import MemoryChanges
from hypothesis import given, settings
from hypothesis import strategies as st
from label_runs import FEEDBACK, STEPS, Run, governed, successful_trajectory
from stream_records import make_ending, make_feedback, make_steps

from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicy
from stepstream.jobs.labels.demonstrations import choose_demonstrations
from stepstream.topics.events import Feedback, new_message

SAID = "the capital is Ulm"


def demonstration(text: str | None = SAID, *, number: int = 1, **fields: Any) -> Feedback:
    values: dict[str, Any] = {"name": "correction", "source": "user", "demonstration": text} | fields
    return make_feedback("t", None, number=number, **values)


def feedback_event(feedback: Feedback, **governance: Any) -> tuple[str, Any]:
    return FEEDBACK, governed(feedback, **governance)


def demonstrations_of(label: Any) -> list[str | None]:
    return [step["demonstration"] for step in label["steps"]]


def test_a_demonstration_without_a_step_counts_for_the_last_response() -> None:
    run = Run()
    one, all_of_it = governed(demonstration(step_index=1)), governed(demonstration("ends so", number=2))
    [label] = run.labels((FEEDBACK, one), (FEEDBACK, all_of_it), *successful_trajectory("t"))
    assert demonstrations_of(label) == [None, SAID, "ends so"]
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
    [label] = run.labels(
        *((STEPS, governed(step)) for step in steps),
        feedback_event(demonstration()),
        feedback_event(make_ending("t", 3)),
    )
    assert demonstrations_of(label) == [None, SAID, None]


def test_a_late_demonstration_and_its_retraction_give_revisions() -> None:
    run = Run()
    run.labels(*successful_trajectory("t"))
    [label] = run.labels(feedback_event(demonstration(step_index=0)))
    assert (label["revision"], demonstrations_of(label)) == (2, [SAID, None, None])
    assert run.labels(feedback_event(demonstration(step_index=0))) == []
    run.restart()
    [label] = run.labels(feedback_event(demonstration("better", number=2, step_index=0)))
    assert (label["revision"], demonstrations_of(label)) == (3, ["better", None, None])
    [label] = run.labels(feedback_event(demonstration(None, number=3, retracts=demonstration(number=2)["event_id"])))
    assert (label["revision"], demonstrations_of(label)) == (4, [SAID, None, None])


def test_a_demonstration_governed_again_replaces_the_old_one() -> None:
    run = Run()
    run.labels(*successful_trajectory("t"), feedback_event(demonstration()))
    [label] = run.labels(
        (FEEDBACK, governed(demonstration("it is <NAME:1>"), 1, trainable=False, flags=["redacted:name"]))
    )
    assert (demonstrations_of(label), label["flags"]) == ([None] * 3, ["demonstration:redacted"])
    [label] = run.labels((FEEDBACK, governed(demonstration(None), 2)))
    assert (demonstrations_of(label), label["flags"]) == ([None] * 3, [])
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
    older, newer = demonstration(number=1, user="ann"), demonstration("no", number=2, **fields)
    [label] = run.labels(
        *successful_trajectory("t", user="ann"), feedback_event(older), feedback_event(newer, **governance)
    )
    assert (demonstrations_of(label), label["flags"]) == ([None, None, SAID], [f"demonstration:{fault}"])
    assert (label["consent"], label["trainable"]) == ("train", True)


def test_a_demonstration_of_another_user_of_the_trajectory_counts() -> None:
    """The label is sealed under their key too."""
    run = Run()
    [first, second, third, end] = successful_trajectory("t", user="ann")
    shared = [first, (STEPS, second[1] | {"user": "bob"}), third, end]
    [label] = run.labels(
        *shared,
        feedback_event(demonstration(user="bob")),
        feedback_event(demonstration(number=2, step_index=0, user="eve")),
    )
    assert (demonstrations_of(label), label["flags"]) == ([None, None, SAID], ["demonstration:person"])
    assert (label["user"], label["other_users"]) == ("ann", ["bob"])


def test_an_untrainable_label_has_no_demonstrations() -> None:
    run = Run()
    run.labels(*successful_trajectory("t", user="ann"), feedback_event(demonstration()))
    run.rules.change(ann="analyse")
    [label] = run.tick_labels()
    assert (label["trainable"], demonstrations_of(label)) == (False, [None] * 3)
    run.rules.change(ann="train")
    [label] = run.tick_labels()
    assert demonstrations_of(label) == [None, None, SAID]
    run.rules.policy = TrajectoryPolicy(keep_out=("truncated",))
    [label] = run.labels(
        *((STEPS, e) for _, e in successful_trajectory("u", finish_reason="length")[:3]), *told_of("u")
    )
    assert (label["trainable"], demonstrations_of(label)) == (False, [None] * 3)


def told_of(name: str) -> list[tuple[str, Any]]:
    mine = {"trajectory_id": name}
    return [(FEEDBACK, governed(demonstration() | mine)), (FEEDBACK, governed(make_ending(name, 3)))]


def test_an_erasure_removes_demonstrations() -> None:
    run = Run()
    run.labels(*successful_trajectory("t", user="ann"), feedback_event(demonstration(user="ann")))
    assert any(SAID.encode() in value for value in run.state.content.values())
    run.rules.erase("ann")
    [label] = run.tick_labels()
    assert (demonstrations_of(label), label["flags"]) == ([None] * 3, ["erased"])
    assert [step["demonstration_event_id"] for step in label["steps"]] == [None] * 3
    assert not any(SAID.encode() in value for value in run.state.content.values())


def test_a_demonstration_with_a_destroyed_key_is_left_out() -> None:
    run = Run()
    run.labels(*successful_trajectory("t"), feedback_event(demonstration()))
    # As the codec reads it once the key of its person is destroyed.
    [key] = [key for key in run.state.content if key.startswith(b"d")]
    sealed = governed(demonstration(None)) | {"seal_key": "k"}
    changes = MemoryChanges(run.state)
    changes.put(key, run.codec.encode(FEEDBACK, sealed))
    run.state.write(changes)
    run.restart()
    [label] = run.labels(feedback_event(make_feedback("t", 0.0, number=5)))
    assert (demonstrations_of(label), label["flags"]) == ([None] * 3, [])


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
    return demonstration(text, number=number, retracts=back and demonstration(number=back)["event_id"], **fields)


@settings(max_examples=60)
@given(ANY, st.randoms(use_true_random=False))
def test_the_order_of_feedback_does_not_matter(all_drawn: list[Any], rng: Any) -> None:
    events = [*successful_trajectory("t"), *(feedback_event(drawn_feedback(drawn)) for drawn in all_drawn)]
    labels = []
    for _ in range(2):
        run = Run()
        made = []
        for place, event in enumerate(events):
            made += run.labels(event)
            if place % 3 == 2:
                run.restart()
        labels.append({**made[-1], "revision": 0, "event_id": "", "opened_at_us": 0})  # the log's order decides these
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
