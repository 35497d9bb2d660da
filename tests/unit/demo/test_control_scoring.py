"""The judgement of a run: right levers, undone faults, false actions, delays."""

from typing import Any

import pytest
from click.testing import CliRunner

from stepstream.cli.demo_control import demo_control, faults
from stepstream.demo.control.run import LONG
from stepstream.demo.control.scoring import Score, judge
from stepstream.demo.control.timeline import EVENTS, Kind, Occurrence, order_of
from stepstream.topics.events import Decision, new_decision

SECOND = 1_000_000


def event(kind: Kind, began_s: int, ended_s: int, subject: str = "") -> Occurrence:
    return Occurrence(kind, began_s * SECOND, ended_s * SECOND, subject)


def decision(at_s: int, lever: str | None, action: str, target: str = "") -> Decision:
    fields: dict[str, Any] = {"event_id": f"{at_s}", "occurred_at_us": at_s * SECOND, "agent": "a", "model": "m"}
    return new_decision(**fields, action=action, lever=lever, target=target)


def score_of(occurrences: list[Occurrence], decisions: list[Decision], undone: tuple[Kind, ...] = ()) -> Score:
    return judge(occurrences, decisions, undone)


BROKEN = event("tool_breaks", 10, 50, "get")
QUIET = event("quiet", 50, 90)


@pytest.mark.parametrize("target", ["get", "get@1"])
def test_the_first_right_decision_gives_the_delay(target: str) -> None:
    found = score_of([BROKEN], [decision(22, "tools", "disable", target), decision(30, "tools", "disable", target)])
    assert (found.right_levers, found.verdicts[0].delay_s, found.false_actions) == (1, 12.0, ())


@pytest.mark.parametrize(
    "wrong",
    [
        decision(20, "tools", "disable", "find"),
        decision(20, "weights", "rollback", "1"),
        decision(20, "prompt", "canary", "v"),
        decision(5, "tools", "disable", "get"),
        decision(60, "tools", "disable", "get"),
    ],
    ids=["another tool", "another lever", "a lever that nothing calls for", "too early", "in the quiet stretch"],
)
def test_a_wrong_decision_is_false_and_answers_nothing(wrong: Decision) -> None:
    found = score_of([BROKEN, QUIET], [wrong])
    assert (found.right_levers, found.false_actions) == (0, (wrong,))


def test_holding_is_neither_right_nor_false() -> None:
    found = score_of([BROKEN, QUIET], [decision(20, None, "hold"), decision(60, None, "hold")])
    assert (found.right_levers, found.false_actions) == (0, ())


def test_trials_belong_to_the_event_that_calls_for_them() -> None:
    better = event("better_examples", 10, 50, "v")
    trials = [decision(20, "prompt", "canary", "v"), decision(30, "prompt", "promote", "v")]
    found = score_of([better], trials)
    assert (found.right_levers, found.false_actions, found.verdicts[0].delay_s) == (1, (), 20.0)
    other = decision(30, "prompt", "promote", "w")
    assert score_of([better], [trials[0], other]).right_levers == 0


def test_versions_that_learn_on_may_be_tried_later_but_not_in_the_quiet_stretch() -> None:
    learn, quiet, broken = event("weights_can_learn", 10, 50), QUIET, event("tool_breaks", 90, 130, "get")
    later, in_quiet = decision(100, "weights", "canary", "3"), decision(60, "weights", "promote", "2")
    learned = [decision(20, "weights", "train", "m"), decision(40, "weights", "promote", "1")]
    found = score_of([learn, quiet, broken], [*learned, in_quiet, later])
    assert found.verdicts[0].delay_s == 30.0
    assert (found.right_levers, found.false_actions) == (1, (in_quiet,))


@pytest.mark.parametrize(("at_s", "false"), [(30, 0), (55, 0), (95, 2)], ids=["within", "after it", "when quiet"])
def test_learning_may_resume_after_a_gamed_reward_but_not_in_the_quiet_stretch(at_s: int, false: int) -> None:
    events = [event("gameable_reward", 10, 50), event("tool_breaks", 50, 90, "get"), event("quiet", 90, 120)]
    resumed = [decision(at_s, "weights", "train", "m"), decision(at_s + 1, "weights", "canary", "2")]
    found = score_of(events, [decision(20, "weights", "pause", "m"), *resumed])
    assert (found.right_levers, len(found.false_actions)) == (1, false)


def test_a_bad_event_is_undone_by_a_right_decision_whose_effect_the_topics_show() -> None:
    occurrences = [BROKEN, event("poisoned_checkpoint", 50, 90, "7")]
    decisions = [
        decision(20, "tools", "disable", "get"),
        decision(55, "weights", "canary", "7"),
        decision(60, "weights", "rollback", "6"),
    ]
    assert score_of(occurrences, decisions, ("tool_breaks", "poisoned_checkpoint")).undone == 2
    assert score_of(occurrences, decisions, ("poisoned_checkpoint",)).undone == 1
    assert score_of(occurrences, decisions[:1], ("tool_breaks", "poisoned_checkpoint")).undone == 1


def test_a_rollback_of_another_version_does_not_answer_a_poisoned_checkpoint() -> None:
    poison = event("poisoned_checkpoint", 50, 90, "7")
    others = [decision(40, "weights", "canary", "5"), decision(60, "weights", "rollback", "4")]
    assert score_of([poison], others[1:]).right_levers == 0
    assert score_of([poison], others).right_levers == 0
    its_own = [decision(70, "weights", "canary", "7"), decision(80, "weights", "rollback", "4")]
    found = score_of([poison], [*others, *its_own])
    assert (found.right_levers, found.verdicts[0].delay_s) == (1, 30.0)


def test_an_order_holds_every_event_once_and_the_quiet_stretch_after_one() -> None:
    orders = [order_of(seed) for seed in range(50)]
    assert all(sorted(order) == sorted([*EVENTS, "quiet"]) and order[0] != "quiet" for order in orders)
    assert order_of(3) == order_of(3)
    assert len({tuple(order) for order in orders}) > 40


def test_every_figure_out_of_range_is_a_fault() -> None:
    good = {
        "right_levers": 5,
        "events": 5,
        "undone": 3,
        "bad_events": 3,
        "false_actions": 0,
        "success_before_interval": (0.4, 0.5),
        "success_after_interval": (0.6, 0.7),
    }
    assert faults(good) == []
    bad = {"right_levers": 4, "undone": 2, "false_actions": 1, "success_after_interval": (0.45, 0.6)}
    for name, value in bad.items():
        assert len(faults(good | {name: value})) == 1, name


def test_a_time_factor_lengthens_the_answers_alone() -> None:
    pace = LONG.with_time_factor(4)
    assert (pace.stretch_s, pace.learn_s) == (4 * LONG.stretch_s, 4 * LONG.learn_s)
    assert (pace.measure_s, pace.quiet_s) == (LONG.measure_s, LONG.quiet_s)
    result = CliRunner().invoke(demo_control, ["--time-factor", "0.5"])
    assert result.exit_code == 2
    assert "--time-factor" in result.output
