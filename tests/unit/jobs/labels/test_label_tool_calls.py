"""Feedback about a tool call pays at the step that made it: never for the whole trajectory, never for its neighbour."""

from typing import Any

import pytest
from fold_harness import FoldRun, MemoryState
from stream_records import as_governed, make_ending, make_feedback, make_steps

from stepstream.jobs.labels import JOB
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import Component, RewardSpec
from stepstream.jobs.rewards.spec_lookup import FixedSpec
from stepstream.topics.events import new_message, new_tool_call

STEPS, FEEDBACK = "governed-steps", "governed-feedback"
SPEC = RewardSpec(
    component=[
        Component(name="outcome", feedback="outcome", outcome=True, bounds=(0.0, 1.0)),
        Component(name="tool", feedback="tool", level="step", bounds=(-1.0, 1.0)),
        Component(name="whole", feedback="tool", bounds=(-1.0, 1.0)),
    ]
)


def said(run: FoldRun, *feedback: dict[str, Any]) -> dict[str, Any]:
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
    state = MemoryState()
    made = FoldRun(JOB, None, state)  # type: ignore[arg-type]
    limits: dict[str, Any] = {"idle_timeout_s": 600.0, "end_grace_s": 30.0, "keep_days": 30}
    made.fold = LabelFold(state, FixedSpec(SPEC), made.codec, **limits)  # type: ignore[arg-type]
    return made


def rewards(label: dict[str, Any]) -> list[float]:
    return [step["reward"] for step in label["steps"]]


def test_without_a_step_it_counts_where_its_call_was_made(run: FoldRun) -> None:
    assert rewards(said(run, {"value": -0.5, "tool_call_id": "x"})) == [0, -0.5, 1]


def test_several_calls_of_a_step_all_count_and_the_newest_of_each(run: FoldRun) -> None:
    label = said(
        run,
        {"value": 1.0, "tool_call_id": "x", "step_index": 1},
        {"value": 0.0, "tool_call_id": "x", "step_index": 1},
        {"value": 0.5, "tool_call_id": "y", "step_index": 1},
    )
    assert rewards(label) == [0, 0.25, 1]


def test_a_word_about_the_whole_step_counts_for_it(run: FoldRun) -> None:
    assert rewards(said(run, {"value": 0.5, "step_index": 1}, {"value": -1.0, "tool_call_id": "y"})) == [0, 0.5, 1]


def test_what_is_about_a_call_that_nobody_made_pays_nothing(run: FoldRun) -> None:
    label = said(run, {"value": 1.0, "tool_call_id": "z"})
    assert rewards(label) == [0, 0, 1]
    assert [term["name"] for step in label["steps"] for term in step["components"]] == ["outcome"]


def test_without_a_call_or_a_step_it_is_about_the_trajectory(run: FoldRun) -> None:
    assert rewards(said(run, {"value": 0.5})) == [0, 0, 1.5]
