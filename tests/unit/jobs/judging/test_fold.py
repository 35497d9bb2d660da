"""The fold of `judge`: which steps it scores, once, and with which consent."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from fold_harness import FoldRun, MemoryChanges, MemoryState, state_removed
from stream_records import T0_US, as_governed, make_steps

from stepstream.jobs.governance.trajectory_policy import NoPolicies, TrajectoryPolicy
from stepstream.jobs.judging.fold import COUNTED, JOB, JudgeFold
from stepstream.jobs.judging.next_state import judged_step
from stepstream.jobs.runtime.day_limit import DayLimit
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.topics.events import Step, new_message

DAY_US = 24 * 3600 * 1_000_000


def talk(name: str = "t", count: int = 2, **fields: Any) -> list[Step]:
    """Steps in which the user answers each response."""
    steps = make_steps(name, count, **fields)
    for index, step in enumerate(steps):
        step["messages"] = [new_message(role="user", content=f"said {index}")]
        step["response"] = new_message(role="assistant", content=f"answered {index}")
    return steps


class Scripted:
    """A judge without a network."""

    def __init__(self, *scores: float | None) -> None:
        self.scores, self.asked = list(scores), [""][:0]

    def score_all(self, questions: Sequence[str]) -> list[float | None]:
        self.asked += questions
        return [self.scores.pop(0) if self.scores else 0.5 for _ in questions]


class Refused(NoPolicies):
    def of(self, *_: Any) -> TrajectoryPolicy:
        return TrajectoryPolicy(consent="none")


def judge_run(
    judge: Scripted,
    policies: Any = None,
    state: MemoryState | None = None,
    rejection: str | None = None,
    max_steps: int = 1_000,
    **only: list[str],
) -> FoldRun:
    run = FoldRun(JOB, None, state or MemoryState())  # type: ignore[arg-type]
    wanted: dict[str, list[str]] = {"agents": [], "tenants": []} | only
    limit = DayLimit(run.state, COUNTED, max_steps)  # type: ignore[arg-type]
    run.fold = JudgeFold(judge, run.codec, policies or NoPolicies(), rejection=lambda: rejection, limit=limit, **wanted)
    return run


def fed(run: FoldRun, steps: list[Any]) -> list[Any]:
    return [event for _, _, event in run.feed([run.record("governed-steps", step) for step in steps])]


def test_the_users_next_message_scores_the_step_before() -> None:
    judge = Scripted(0.75)
    steps = talk(user="ann")
    [feedback] = fed(judge_run(judge), [as_governed(step) for step in steps])
    about = ("trajectory_id", "step_index", "name", "value", "source", "user", "consent")
    assert tuple(feedback[field] for field in about) == ("t", 0, "next_state", 0.75, "judge", "ann", "train")
    assert [orjson.loads(question) for question in judge.asked] == [
        {"request": "said 0", "response": {"text": "answered 0", "tools": []}, "reaction": "said 1"}
    ]


def test_an_uncalibrated_judge_gives_shadow_feedback() -> None:
    [feedback] = fed(judge_run(Scripted(), rejection="not calibrated"), [as_governed(step) for step in talk()])
    assert (feedback["name"], feedback["comment"]) == ("shadow.next_state", "not calibrated")


def test_a_redelivered_or_newly_governed_step_is_asked_about_once() -> None:
    judge = Scripted()
    run = judge_run(judge)
    governed: list[Any] = [as_governed(step) for step in talk()]
    [first] = fed(run, governed)
    newer = governed[1] | {"event_id": "newer", "governed": governed[1]["governed"] | {"policy_version": 2}}
    assert fed(run, [*governed, newer]) == []
    assert len(judge.asked) == 1
    # And if its state is lost, the feedback is the same event.
    assert fed(judge_run(Scripted()), governed) == [first]


def test_no_model_is_called_during_a_rebuild() -> None:
    judge = Scripted()
    run = judge_run(judge)
    changes, out = MemoryChanges(run.state), Outputs(JOB, run.codec, lambda call: call())  # type: ignore[arg-type]
    out.replaying = True
    steps = [as_governed(step) for step in talk(count=3)]
    for record in [run.record("governed-steps", step) for step in steps[:2]]:
        run.fold.apply(record, run.codec.decode(record.topic, record.value), changes, out)
    run.state.write(changes)
    assert judge.asked == []
    [feedback] = fed(run, steps[2:])
    assert feedback["step_index"] == 1


def test_a_step_without_a_reaction_is_not_judged() -> None:
    judge = Scripted()
    tools = make_steps("tools", 3)
    roots = [step | {"prompt_shared_messages": 0, "prompt_shared_tokens": 0} for step in talk("roots", 3)]
    assert fed(judge_run(judge), [as_governed(step) for step in [*tools, *roots]]) == []
    assert judge.asked == []


def test_a_branch_scores_the_step_that_it_continues() -> None:
    steps = talk(count=3)
    steps[2]["prompt_shared_step"] = 0
    assert [judged_step(step) for step in steps] == [None, 0, 0]
    repeated = steps[1] | {"messages": [steps[0]["response"], *steps[1]["messages"]]}
    assert judged_step(repeated) == 0


@pytest.mark.parametrize("only", [{"agents": ["other"]}, {"tenants": ["other"]}])
def test_only_configured_agents_and_tenants_are_judged(only: dict[str, Any]) -> None:
    steps = [as_governed(step) for step in talk()]
    judge = Scripted()
    run = judge_run(judge, **only)
    assert fed(run, steps) == []
    assert run.state.content == {}
    assert len(fed(judge_run(judge, agents=["agent"], tenants=["default"]), steps)) == 1


def test_consent_is_checked_before_the_judge_is_called() -> None:
    judge = Scripted()
    steps = talk(consent="analyse")
    [feedback] = fed(judge_run(judge), [as_governed(step) for step in steps])
    assert feedback["consent"] == "analyse"
    assert fed(judge_run(judge, Refused()), [as_governed(step) for step in steps]) == []
    erased = [as_governed(step) | {"seal_key": "k"} for step in steps]
    assert fed(judge_run(judge), erased) == []
    assert len(judge.asked) == 1


def test_a_reaction_after_a_weekend_counts() -> None:
    judge, (first, second) = Scripted(), talk()
    second["occurred_at_us"] += 3 * DAY_US
    run = judge_run(judge)
    assert fed(run, [as_governed(first)]) == []
    run.tick((first["occurred_at_us"] + 3 * DAY_US) // 1000)
    assert len(fed(run, [as_governed(second)])) == 1


def test_expired_days_are_deleted() -> None:
    run = judge_run(Scripted(None))
    steps = talk()
    assert fed(run, [as_governed(step) for step in steps]) == []
    run.tick((steps[0]["occurred_at_us"] + 6 * DAY_US) // 1000)
    assert run.state.content == {}


def test_old_days_are_deleted_while_steps_of_new_ones_arrive() -> None:
    run = judge_run(Scripted())
    old, new = make_steps("old", 1), make_steps("new", 1, at_us=T0_US + 6 * DAY_US)
    run.tick(T0_US // 1000)
    for steps in (old, new):  # the step of the new day arrives before its first tick
        fed(run, [as_governed(step) for step in steps])
    before = state_removed("step", "age")
    run.tick(T0_US // 1000 + 6 * DAY_US // 1000)
    assert len([key for key in run.state.content if key.startswith(b"s")]) == 1
    assert state_removed("step", "age") - before == 1


def test_the_oldest_steps_beyond_the_limit_are_forgotten() -> None:
    run, before = judge_run(Scripted(), max_steps=10), state_removed("step", "cap")
    for days in range(3):
        steps = make_steps(f"t{days}", 6, at_us=T0_US + days * DAY_US)
        fed(run, [as_governed(step) for step in steps] * 2)  # delivered twice, counted once
    run.tick(T0_US // 1000)
    left = [key[1:5] for key in run.state.content if key.startswith(b"s")]
    assert len(left) == 18 - (state_removed("step", "cap") - before) <= 10
    assert left.count(max(left)) == 6


def test_the_steps_of_a_batch_are_asked_about_together_and_published_in_order() -> None:
    class Together(Scripted):
        batches = 0

        def score_all(self, questions: Sequence[str]) -> list[float | None]:
            self.batches += 1
            return super().score_all(questions)

    judge = Together(0.25, None, 0.75)
    outputs = fed(judge_run(judge), [as_governed(step) for step in talk(count=4)])
    assert [(feedback["step_index"], feedback["value"]) for feedback in outputs] == [(0, 0.25), (2, 0.75)]
    assert (judge.batches, len(judge.asked)) == (1, 3)
