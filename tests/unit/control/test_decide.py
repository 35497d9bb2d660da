"""Decisions: diagnosis, limits, canaries, bad input, and equal bytes on replay."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepstream.analytics.estimate import Estimate
from stepstream.analytics.success import Attempts
from stepstream.analytics.tools import Calls
from stepstream.schemas import schema
from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.event import event_of
from stepstream.services.control.decide.policy import CanaryPolicy, ControlPolicy
from stepstream.services.control.decide.records import (
    Canary,
    Candidate,
    Decision,
    Groups,
    History,
    Outcome,
    Past,
    Promotion,
    RewardAlarm,
    Snapshot,
    Source,
    Stratum,
    ToolWindow,
)

HOUR = 3_600_000_000
NOW = 24 * 20_000 * HOUR + 12 * HOUR
POLICY = ControlPolicy()
BROKEN = ToolWindow("search", "2", "timeout", Calls(1800, 36), Calls(120, 20))
BETTER = Candidate("prompt", "p2", "p1", Estimate(0.1, 0.05, 0.15, 100, 100))
CANARY = Canary("weights", "8", "7", NOW - HOUR, 0.1)


def outcomes(rates: Sequence[float], track: str = "stable", **fields: Any) -> tuple[Outcome, ...]:
    drawn = np.random.default_rng(5)
    return tuple(Outcome(track, bool(drawn.random() < rate), **fields) for rate in rates)  # type: ignore[arg-type]


def snapshot(**fields: Any) -> Snapshot:
    values = {"outcomes": outcomes([0.6] * 100), "complete_until_us": NOW, "source": Source("v", "1:2"), **fields}
    return Snapshot("default", "shop", "m", NOW, **values)


def decided(history: History | None = None, policy: ControlPolicy = POLICY, **fields: Any) -> Decision:
    return decide(snapshot(**fields), history or History(), policy)


def tracks(canary: float, stable: float, n: int = 300, **fields: Any) -> tuple[Outcome, ...]:
    drawn = np.random.default_rng(9)
    both = []
    for _ in range(n):
        both.append(Outcome("canary", bool(drawn.random() < canary), per_canary=3, **fields))
        both.extend(Outcome("stable", bool(drawn.random() < stable)) for _ in range(3))
    return tuple(both)


def test_nothing_to_do_is_a_decision_with_a_reason() -> None:
    decision = decided()
    assert (decision.action, decision.reason) == ("hold", "no rule found anything to do")
    assert decision.policy_hash == POLICY.hash


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tools": (BROKEN,)}, ("tool_errors", "disable", "search")),
        ({"tools": (replace(BROKEN, previous_version="1"),)}, ("tool_errors", "rollback", "search@1")),
        ({"candidates": (BETTER,)}, ("headroom", "canary", "p2")),
        ({"format_failures": Attempts(100, 30)}, ("format_failures", "propose", "shop")),
        ({"groups": Groups(50, 10, 0.5)}, ("gradient", "train", "m")),
        ({"groups": Groups(50, 50, 0.0), "learning": True}, ("coverage", "resample", "shop")),
        ({"coverage": Estimate(0.2, 0.1, 0.3, 40)}, ("coverage", "resample", "shop")),
        ({"alarms": (RewardAlarm("a", "length rose"),), "learning": True}, ("diverging_rewards", "pause", "m")),
        ({"staleness_p95": 12.0, "learning": True}, ("staleness", "pause", "m")),
        ({"candidates": (Candidate("weights", "8", "7"),)}, ("new_version", "canary", "8")),
    ],
)
def test_each_fault_has_its_lever(fields: dict[str, Any], expected: tuple[str, str, str]) -> None:
    decision = decided(**fields)
    assert (decision.rule, decision.action, decision.target) == expected
    assert decision.undo
    assert decision.watched_until_us > NOW


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": (replace(BROKEN, window=Calls(120, 14)),)},
        {"tools": (replace(BROKEN, before=Calls(60, 0), window=Calls(60, 5)),)},
        {"tools": (replace(BROKEN, offered=False),)},
        {"candidates": (replace(BETTER, headroom=Estimate(0.1, -0.01, 0.2, 100, 100)),)},
        {"candidates": (replace(BETTER, headroom=Estimate(0.01, 0.005, 0.015, 100, 100)),)},
        {"format_failures": Attempts(100, 12)},
        {"groups": Groups(50, 10, 0.97)},
        {"groups": Groups(50, 45, 0.5)},
        {"alarms": (RewardAlarm("a", "length rose"),)},
        {"staleness_p95": 12.0},
    ],
)
def test_weak_evidence_pulls_nothing(fields: dict[str, Any]) -> None:
    assert decided(**fields).action == "hold"


def test_the_cheapest_lever_goes_first_and_the_others_say_why_they_lost() -> None:
    decision = decided(candidates=(BETTER,), groups=Groups(50, 10, 0.5))
    assert decision.lever == "prompt"
    assert [(lost.lever, lost.reason) for lost in decision.lost] == [("weights", "prompt is cheaper than weights")]
    assert decision.detectable_effect == pytest.approx(0.06, abs=0.01)
    taken_back = decided(candidates=(BETTER,), staleness_p95=12.0, learning=True)
    assert taken_back.rule == "staleness"


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_detectable_difference_is_stated_at_any_success(rate: float) -> None:
    decision = decided(candidates=(BETTER,), outcomes=outcomes([rate] * 100))
    assert decision.detectable_effect == pytest.approx(0.0075, abs=0.0005)


def test_a_fall_after_a_promotion_is_taken_back_unless_the_mix_explains_it() -> None:
    history = History(promotion=Promotion("weights", "8", "7", NOW - HOUR))
    fall: dict[str, Any] = {"outcomes": outcomes([0.8] * 100 + [0.4] * 100), "baseline": Attempts(1000, 800)}
    decision = decided(history, **fall)
    assert (decision.rule, decision.action, decision.target) == ("change_after_promotion", "rollback", "7")
    change = next(figure.value for figure in decision.evidence if figure.name == "change_at")
    assert change == pytest.approx(101, abs=30)
    fell = fall["outcomes"]
    harder = tuple(replace(one, stratum="hard" if i >= 100 else "easy") for i, one in enumerate(fell))
    strata = {name: Stratum(Attempts(500, n), Attempts(0, 0)) for name, n in (("easy", 400), ("hard", 200))}
    assert decided(history, outcomes=harder, strata=strata).action == "hold"
    worse = tuple(replace(one, stratum="easy") for one in fell)
    assert decided(history, outcomes=worse, strata=strata).action == "rollback"
    without_tool = tuple(one if one.success else replace(one, failure="tool") for one in fell[100:])
    assert decided(history, **fall | {"outcomes": fell[:100] + without_tool}).action == "hold", "a tool is out of order"


def test_failures_that_close_before_the_successes_of_their_time_are_no_fall() -> None:
    history = History(promotion=Promotion("weights", "8", "7", NOW - HOUR))
    begun = outcomes([0.5] * 300)
    baseline = Attempts(1000, 500)
    newest = [replace(one, success=None) if one.success and i >= 200 else one for i, one in enumerate(begun)]
    assert decided(history, outcomes=tuple(newest), baseline=baseline).action == "hold"
    failed = [replace(one, success=False) if one.success is None else one for one in newest]
    decision = decided(history, outcomes=tuple(failed), baseline=baseline)
    assert decision.rule == "change_after_promotion"
    still_open = (*failed[:299], replace(failed[299], success=None))
    assert decided(history, outcomes=still_open, baseline=baseline).rule == decision.rule, "one does not hold it up"


@pytest.mark.parametrize(
    ("both", "action"),
    [
        (tracks(0.8, 0.5), "promote"),
        (tracks(0.2, 0.5), "rollback"),
        (tracks(0.5, 0.5, n=500), "widen"),
        (tracks(0.5, 0.5, n=30), "hold"),
        (tracks(0.5, 0.5, n=1000), "rollback"),
        (tracks(0.5, 0.5, n=40, harmed=True), "rollback"),
    ],
)
def test_a_canary_is_judged(both: tuple[Outcome, ...], action: str) -> None:
    assert decided(History(canary=CANARY), outcomes=both).action == action


def test_a_hold_on_a_canary_has_its_figures() -> None:
    waiting, history = tracks(0.5, 0.5, n=30), History(canary=CANARY)
    held = decided(history, outcomes=waiting)
    figures = {one.name: one for one in held.evidence}
    assert {"difference", "e_better", "e_not_worse", "e_worse", "e_harm", "successes_lost"} == figures.keys()
    assert (held.action, figures["difference"].n, figures["difference"].view) == ("hold", 30, "v")
    assert held.to_bytes() == decided(history, outcomes=waiting).to_bytes()
    blocked = decided(history, ControlPolicy(freeze=True), outcomes=tracks(0.8, 0.5))
    assert (blocked.reason, bool(blocked.evidence)) == ("frozen", True)
    assert decided().evidence == ()


def test_a_late_outcome_is_waited_for() -> None:
    both = (replace(tracks(0.8, 0.5)[0], success=None), *tracks(0.8, 0.5)[1:])
    assert decided(History(canary=CANARY), outcomes=both).action == "hold"


def test_a_rise_of_success_with_a_fall_of_reliability_never_promotes() -> None:
    both: list[Outcome] = []
    for i in range(120):  # stable: half of the tasks always succeed; canary: every task, two times of three
        both.extend(Outcome("canary", j != i % 3, cluster=f"c{i}", per_canary=1) for j in range(3))
        both.extend(Outcome("stable", i % 2 == 0, cluster=f"s{i}") for _ in range(3))
    decision = decided(History(canary=CANARY), outcomes=tuple(both))
    assert (decision.action, decision.reason) == ("rollback", "pass@1 rises while pass^3 falls")


def test_a_version_below_the_approved_one_is_not_promoted() -> None:
    canary = replace(CANARY, approved=Attempts(1000, 950))
    decision = decided(History(canary=canary), outcomes=tracks(0.8, 0.5))
    assert decision.reason == "it is worse than the last version that a person approved"
    [drift] = [one for one in decision.evidence if one.name == "drift"]
    assert drift.high is not None
    assert drift.high < 0


def test_dependent_trajectories_count_once() -> None:
    both = tuple(replace(one, cluster=one.track) for one in tracks(0.8, 0.5))
    assert decided(History(canary=CANARY), outcomes=both).action == "hold"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"missing": ("tool_errors",)}, "missing statistics: tool_errors"),
        ({"revised": True}, "revised"),
        ({"complete_until_us": NOW - HOUR}, "3600 s old"),
        ({"complete_until_us": 0}, "no statistics yet"),
        ({"complete_until_us": NOW + 1_000_000}, "after the time"),
    ],
)
def test_bad_statistics_hold(fields: dict[str, Any], reason: str) -> None:
    decision = decided(tools=(BROKEN,), **fields)
    assert decision.action == "hold"
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("policy", "history", "reason"),
    [
        ("freeze = true", History(), "frozen"),
        ("", History(frozen=True), "frozen"),
        ("quiet_hours = ['11:00-13:00']", History(), "quiet hours"),
        ("[levers.prompt]\nenabled = false", History(), "disabled"),
        ("decisions_per_day = 0", History(), "rate limit"),
        ("min_trajectories = 101", History(), "100 closed trajectories"),
        ("", History(canary=CANARY), "is running"),
        ("", History((Past("d", NOW - HOUR // 2, "prompt", "canary", "p0"),)), "cool-down"),
        ("", History((Past("d", NOW - 2 * HOUR, "tools", "disable", "x", NOW + 1),)), "being watched"),
        ("", History((Past("d", NOW - 2 * HOUR, "prompt", "canary", "p2", state="awaiting"),)), "in force"),
        ("", History((Past("d", NOW - 2 * HOUR, "prompt", "canary", "p2", state="rejected"),)), "rejected"),
    ],
)
def test_limits_block_a_start(policy: str, history: History, reason: str) -> None:
    decision = decided(history, ControlPolicy.parse(policy), candidates=(BETTER,))
    assert decision.action == "hold"
    assert any(reason in lost.reason for lost in decision.lost)


MALFORMED = Attempts(100, 30)


def test_a_proposal_delays_the_next_proposal_but_not_the_canary_that_tries_it() -> None:
    proposed = Past("d", NOW - HOUR // 2, "prompt", "propose", "shop", NOW + 1)
    policy = ControlPolicy.parse("[levers.prompt]\nbudget_per_day = 1")
    for state in ("done", "awaiting"):
        history = History((replace(proposed, state=state),))
        assert decided(history, policy, candidates=(BETTER,)).action == "canary"
        assert decided(history, policy, format_failures=MALFORMED).action == "hold"
    tried = History((replace(proposed, action="canary", target="p0", watched_until_us=NOW - 1),))
    assert decided(tried, policy, format_failures=MALFORMED).action == "propose"


def test_while_its_search_runs_a_proposal_is_not_decided_again() -> None:
    running = Past("d", NOW - 25 * HOUR, "prompt", "propose", "shop", NOW - 24 * HOUR, "awaiting")
    assert "in force" in decided(History((running,)), format_failures=MALFORMED).reason
    assert decided(History((replace(running, state="done"),)), format_failures=MALFORMED).action == "propose"


def test_taking_back_is_not_delayed() -> None:
    policy = ControlPolicy.parse("freeze = true\nquiet_hours = ['11:00-13:00']\ndecisions_per_day = 0")
    assert decided(History(frozen=True), policy, tools=(BROKEN,)).action == "disable"
    assert decided(History(canary=CANARY), policy, outcomes=tracks(0.2, 0.5)).action == "rollback"


def test_a_pause_that_a_person_undid_is_not_repeated_for_a_day() -> None:
    alarm = RewardAlarm("a1", "the reward rose")
    undone = Past("d", NOW - 2 * HOUR, "weights", "pause", "m", state="rejected")
    assert decided(alarms=(alarm,), learning=True).action == "pause"
    held = decided(History((undone,)), alarms=(alarm,), learning=True)
    assert (held.action, [lost.reason for lost in held.lost]) == ("hold", ["a person rejected it less than a day ago"])
    past = replace(undone, at_us=NOW - 25 * HOUR)
    assert decided(History((past,)), alarms=(alarm,), learning=True).action == "pause"


def test_a_large_blast_radius_needs_a_person() -> None:
    decision = decided(policy=ControlPolicy.parse("approve_above = 0.2"), candidates=(BETTER,))
    assert (decision.approvals, decision.roles) == (1, ("operator", "admin"))


def test_the_declared_blast_radius_is_the_share_that_an_action_reaches() -> None:
    tried = History(canary=CANARY)
    better, worse, alike = (tracks(rate, 0.5, n=500) for rate in (0.8, 0.2, 0.5))
    promoted = History(promotion=Promotion("weights", "8", "7", NOW - HOUR))
    fall: dict[str, Any] = {"outcomes": outcomes([0.8] * 100 + [0.4] * 100), "baseline": Attempts(1000, 800)}
    found = {
        "canary": decided(candidates=(BETTER,)),
        "widen": decided(tried, outcomes=alike),
        "promote": decided(tried, outcomes=better),
        "rollback": decided(promoted, **fall),
        "disable": decided(tools=(BROKEN,)),
        "train": decided(groups=Groups(50, 10, 0.5)),
    }
    radii = {"canary": 0.1, "widen": 0.3, "promote": 1.0, "rollback": 1.0, "disable": 1.0, "train": 0.0}
    assert {name: (one.action, one.blast_radius) for name, one in found.items()} == {
        name: (name, radius) for name, radius in radii.items()
    }
    assert decided(tried, outcomes=worse).blast_radius == 0.1, "the canary's share"
    assert {one.approvals for one in found.values()} == {0}, "by the default policy"


def test_a_promotion_needs_a_person_where_the_policy_says_so() -> None:
    policy = ControlPolicy.parse("approve_promotions = true")
    promoted = decided(History(canary=CANARY), policy, outcomes=tracks(0.8, 0.5))
    assert (promoted.action, promoted.approvals, promoted.roles) == ("promote", 1, ("operator", "admin"))
    assert decided(policy=policy, candidates=(BETTER,)).approvals == 0


def test_a_decision_is_an_event_with_every_field() -> None:
    decision = decided(candidates=(BETTER,), groups=Groups(50, 10, 0.5))
    reader, event = fastavro.parse_schema(schema("Decision")), event_of(decision)
    assert event.keys() == {field["name"] for field in schema("Decision")["fields"]}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, reader, event)
    body.seek(0)
    assert fastavro.schemaless_reader(body, reader) == event
    assert event["event_id"] == decision.id


@settings(max_examples=30)
@given(st.lists(st.booleans(), max_size=120), st.booleans(), st.integers(0, 40))
def test_a_replay_gives_the_same_bytes_and_other_inputs_another_id(
    successes: list[bool], learning: bool, errors: int
) -> None:
    made = [
        decided(
            outcomes=tuple(Outcome("stable", success) for success in successes),
            tools=(replace(BROKEN, window=Calls(120, errors)),),
            learning=learning,
        )
        for _ in range(2)
    ]
    assert made[0].to_bytes() == made[1].to_bytes()
    assert decided(outcomes=(*outcomes([1.0]),), learning=learning).id != made[0].id


@pytest.mark.parametrize("error", ["invalid_arguments", "unknown_tool"])
def test_malformed_calls_disable_no_tool(error: str) -> None:
    assert decided(tools=(BROKEN,)).lever == "tools"
    assert decided(tools=(replace(BROKEN, error=error),)).lever != "tools"


def test_a_canary_without_result_ends_under_a_rule_of_its_own() -> None:
    policy = ControlPolicy(canary=CanaryPolicy(max_trajectories=200, shares=(0.1,), harm_budget=1000))
    ended = decided(History(canary=CANARY), policy, outcomes=tracks(0.6, 0.6))
    assert (ended.action, ended.rule, ended.target) == ("rollback", "canary_without_result", "7")
    harmed = decided(History(canary=CANARY), policy, outcomes=tracks(0.1, 0.6))
    assert (harmed.action, harmed.rule, harmed.target) == ("rollback", "canary", "7")


def test_trajectories_that_wait_for_an_open_one_do_not_end_a_canary() -> None:
    """A test compares in the order of assignment, so one that stays open until its timeout holds up all later ones."""
    policy = ControlPolicy(canary=CanaryPolicy(max_trajectories=200, shares=(0.1,), harm_budget=1000))
    waiting = decided(History(canary=CANARY), policy, outcomes=(Outcome("stable", None), *tracks(0.6, 0.6)))
    assert (waiting.action, waiting.reason) == ("hold", "the canary has no result after 0 trajectories")


def test_a_rejected_promotion_ends_the_canary_at_once() -> None:
    rejected = Past("d9", NOW - HOUR // 2, "weights", "promote", "8", NOW + HOUR, "rejected")

    def after(past: Past, rate: float = 0.8, policy: ControlPolicy = POLICY) -> Decision:
        return decided(History((past,), CANARY), policy, outcomes=tracks(rate, 0.5))

    ended = after(rejected)
    assert (ended.action, ended.rule, ended.target, ended.approvals) == ("rollback", "canary_without_result", "7", 0)
    assert ended.reason == "a person rejected its promotion (decision d9)"
    assert after(rejected, policy=ControlPolicy(freeze=True)).action == "rollback"
    assert after(rejected, rate=0.2).rule == "canary", "harm is not forgiven"
    for other in ({"state": "awaiting"}, {"target": "6"}, {"lever": "prompt"}, {"at_us": NOW - 2 * HOUR}):
        assert after(replace(rejected, **other)).action != "rollback", other
