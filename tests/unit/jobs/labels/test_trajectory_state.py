"""State of one trajectory: its owner, and feedback about its tool calls."""

from typing import Any

import pytest
from fold_harness import FoldRun, MemoryState
from label_runs import label_settings
from stream_records import as_governed, make_ending, make_feedback, make_steps

from stepstream.jobs.labels import JOB
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import Component, RewardSpec
from stepstream.jobs.rewards.spec_lookup import FixedSpec
from stepstream.topics.events import new_message, new_tool_call

STEPS, FEEDBACK, LABELS, LETTERS = "governed-steps", "governed-feedback", "labeled-trajectories", "dead-letters"
NOW_MS = 1_760_000_100_000
OURS: dict[str, Any] = {"tenant": "ours"}
THEIRS: dict[str, Any] = {"tenant": "theirs"}
SPEC = RewardSpec(
    component=[
        Component(name="outcome", feedback="outcome", outcome=True, bounds=(0.0, 1.0)),
        Component(name="tool", feedback="tool", level="step", bounds=(-1.0, 1.0)),
        Component(name="whole", feedback="tool", bounds=(-1.0, 1.0)),
    ]
)


def label_run(spec: RewardSpec | None = None) -> FoldRun:
    state = MemoryState()
    run = FoldRun(JOB, None, state)  # type: ignore[arg-type]
    run.fold = LabelFold(
        state,  # type: ignore[arg-type]
        FixedSpec(spec or RewardSpec()),
        run.codec,
        settings=label_settings(),
    )
    return run


def feed(run: FoldRun, topic: str, *events: Any) -> list[tuple[str, Any]]:
    records = [run.record(topic, as_governed(event)) for event in events]
    return [(topic, event) for topic, _, event in run.feed(records)]


def test_feedback_of_another_tenant_is_not_about_this_trajectory() -> None:
    run = label_run()
    feed(run, STEPS, *make_steps("t", 2, **OURS))
    assert feed(run, FEEDBACK, make_ending("t", 2, **THEIRS)) == []
    [(topic, label)] = feed(run, FEEDBACK, make_ending("t", 2, 0.0, number=1, **OURS))
    assert (topic, label["tenant"], label["reward"]) == (LABELS, "ours", 0.0)
    assert feed(run, FEEDBACK, make_feedback("t", 1.0, number=2, **THEIRS)) == []


def test_early_feedback_of_another_tenant_does_not_hasten_the_end() -> None:
    run = label_run()
    assert feed(run, FEEDBACK, make_ending("t", 1, 1.0, **THEIRS)) == []
    assert feed(run, FEEDBACK, make_feedback("t", 0.25, number=1, **OURS)) == []
    assert feed(run, STEPS, *make_steps("t", 2, **OURS)) == []
    assert [event["tenant"] for _, _, event in run.tick(NOW_MS + 31_000)] == ["theirs"]
    closed = next(event for _, _, event in run.tick(NOW_MS + 601_000) if event["tenant"] == "ours")
    assert closed["reason"] == "idle"
    [(_, _, label)] = run.feed([run.record("closures", closed)])
    assert (label["end"], label["reward"]) == ("open", 0.25)


def test_a_replay_topic_by_topic_gives_the_same_label() -> None:
    steps, early, late = (
        make_steps("t", 1, **OURS),
        make_ending("t", 1, **THEIRS),
        make_ending("t", 1, 0.5, number=1, **OURS),
    )
    live, again = label_run(), label_run()
    feed(live, FEEDBACK, early)
    feed(live, STEPS, *steps)
    [(_, label)] = feed(live, FEEDBACK, late)
    feed(again, STEPS, *steps)
    assert feed(again, FEEDBACK, early, late)[-1][1] == label


def label_with(run: FoldRun, *feedback: dict[str, Any]) -> dict[str, Any]:
    """The label of three steps, the second of which makes the calls `x` and `y`, with this feedback."""
    steps = make_steps("t", 3)
    calls = [new_tool_call(call_id=name, name="get", arguments="{}") for name in ("x", "y")]
    steps[1]["response"] = new_message(role="assistant", tool_calls=calls)
    events = [make_feedback("t", number=9 + n, name="tool", **fields) for n, fields in enumerate(feedback)]
    records = [run.record(FEEDBACK, as_governed(event)) for event in events]
    records += [run.record(STEPS, as_governed(step)) for step in steps]
    records.append(run.record(FEEDBACK, as_governed(make_ending("t", 3))))
    label: dict[str, Any] = run.feed(records)[-1][2]
    return label


@pytest.fixture
def run() -> FoldRun:
    return label_run(SPEC)


def rewards(label: dict[str, Any]) -> list[float]:
    return [step["reward"] for step in label["steps"]]


def test_feedback_about_a_call_counts_for_the_step_that_made_it(run: FoldRun) -> None:
    assert rewards(label_with(run, {"value": -0.5, "tool_call_id": "x"})) == [0, -0.5, 1]


def test_the_newest_feedback_of_each_call_of_a_step_is_averaged(run: FoldRun) -> None:
    label = label_with(
        run,
        {"value": 1.0, "tool_call_id": "x", "step_index": 1},
        {"value": 0.0, "tool_call_id": "x", "step_index": 1},
        {"value": 0.5, "tool_call_id": "y", "step_index": 1},
    )
    assert rewards(label) == [0, 0.25, 1]


def test_feedback_about_the_whole_step_wins_over_its_calls(run: FoldRun) -> None:
    assert rewards(label_with(run, {"value": 0.5, "step_index": 1}, {"value": -1.0, "tool_call_id": "y"})) == [
        0,
        0.5,
        1,
    ]


def test_feedback_about_an_unknown_call_counts_for_nothing(run: FoldRun) -> None:
    label = label_with(run, {"value": 1.0, "tool_call_id": "z"})
    assert rewards(label) == [0, 0, 1]
    assert [term["name"] for step in label["steps"] for term in step["components"]] == ["outcome"]


def test_feedback_without_a_call_or_a_step_counts_for_the_trajectory(run: FoldRun) -> None:
    assert rewards(label_with(run, {"value": 0.5})) == [0, 0, 1.5]
