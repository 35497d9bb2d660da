"""Test that the fleet limits how far agents run ahead of the learner, and never stops for good."""

from typing import Any, get_args

import pytest
from credit_cases import LOSS_OF
from hypothesis import given
from hypothesis import strategies as st

from stepstream.config import LearnerSettings, Settings
from stepstream.services.fleet.__main__ import admission_of
from stepstream.services.fleet.admission import MIN_RELIEF_S, Admission, capacity


def test_capacity_is_areals() -> None:
    assert capacity(per_version=8, max_ahead=2, version=3, accepted=30, running=10, most_running=16) == 6


def admitted(admission: Admission, most: int = 1000) -> int:
    groups = 0
    while groups < most and admission.admits():
        admission.start_group()
        groups += 1
    return groups


def test_groups_for_the_next_version_and_those_ahead_are_admitted() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=4)
    assert admitted(admission) == 4
    admission.advance(1, 0.0)
    assert admitted(admission) == 2


def test_a_synchronous_learner_admits_one_version_of_groups() -> None:
    admission = Admission(per_version=8, max_ahead=0, group_size=4)
    assert admitted(admission) == 2
    admission.advance(1, 0.0)
    assert admitted(admission) == 2


def test_a_resumed_lineage_has_consumed_its_share() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=4)
    for version in range(1, 6):
        admission.advance(version, 0.0)
    assert admitted(admission) == 4


def test_another_lineage_starts_from_its_own_version() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=4)
    admission.advance(5, 0.0)
    admitted(admission)
    admission.advance(0, 1.0)
    assert admitted(admission) == 4


def test_groups_without_variance_leave_the_count() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=2)
    admitted(admission)
    for outcome in (1.0, 1.0):
        admission.end_attempt("same", outcome)
    for outcome in (1.0, 0.0):
        admission.end_attempt("different", outcome)
    assert admitted(admission) == 1


def test_equal_outcomes_count_if_attempts_are_not_compared() -> None:
    admission = Admission(per_version=8, max_ahead=0, group_size=2, compares=False)
    admitted(admission)
    for outcome in (1.0, 1.0):
        admission.end_attempt("same", outcome)
    assert admitted(admission) == 0


def test_a_group_that_the_learner_released_leaves_the_count_once() -> None:
    admission = Admission(per_version=8, max_ahead=0, group_size=2)
    admitted(admission)
    for group in ("stale", "used", "equal"):
        for outcome in (1.0, 1.0 if group == "equal" else 0.0):
            admission.end_attempt(group, outcome)
    assert admitted(admission) == 1  # equal
    for attempt in "ab":
        for group, trained in (("stale", False), ("used", True), ("used", False), ("unknown", False)):
            admission.add_decision(group, attempt, trained=trained)
    for attempt in "ab":
        admission.add_decision("equal", attempt, trained=False)
    assert admitted(admission) == 1


def test_a_repeated_decision_counts_once() -> None:
    admission = Admission(per_version=8, max_ahead=0, group_size=2)
    admitted(admission)
    for outcome in (1.0, 0.0):
        admission.end_attempt("g", outcome)
    for _ in range(2):
        admission.add_decision("g", "a", trained=False)
    assert admitted(admission) == 0
    admission.add_decision("g", "b", trained=False)
    assert admitted(admission) == 1


def test_training_on_equal_outcomes_restores_the_count() -> None:
    admission = Admission(per_version=8, max_ahead=0, group_size=2)
    admitted(admission)
    for _ in range(2):
        admission.end_attempt("g", 1.0)
    admission.add_decision("g", "a", trained=True)  # the reward had more components than the outcome
    admission.add_decision("g", "b", trained=True)
    assert admitted(admission) == 0


def test_equal_outcomes_count_if_the_reward_has_more_components() -> None:
    admission = Admission(per_version=8, max_ahead=0, group_size=2)
    admission.outcome_only = False
    admitted(admission)
    for group in ("same", "trained"):
        for _ in range(2):
            admission.end_attempt(group, 1.0)
    assert admitted(admission) == 0
    for attempt in "ab":
        admission.add_decision("same", attempt, trained=False)
        admission.add_decision("trained", attempt, trained=True)
    assert admitted(admission) == 1


LEARN_FROM_EQUALS = {"reinforce_pp", "ppo_gae", "step_ppo", "vtrace", "gigpo", "hgpo", "step_gae", "shadow", "hcapo"}


def settings_of(**learner: Any) -> Settings:
    fleet = {"group_size": 2, "max_ahead": 0}
    config = {"groups_per_update": 4, "updates_per_checkpoint": 1, **learner}
    return Settings.model_validate({"fleet": fleet, "learner": config})


def admitted_after_equals(settings: Settings) -> int:
    """Groups that may start in the place of one whose outcomes were all the same."""
    admission = admission_of(settings)
    assert admission is not None
    assert admitted(admission) == 4
    for _ in range(2):
        admission.end_attempt("same", 1.0)
    return admitted(admission)


@pytest.mark.parametrize("name", get_args(LearnerSettings.model_fields["advantage"].annotation))
def test_equal_outcomes_leave_the_count_if_the_rule_gets_no_gradient_from_them(name: str) -> None:
    expected = 0 if name in LEARN_FROM_EQUALS else 1
    assert admitted_after_equals(settings_of(advantage=name, **LOSS_OF.get(name, {}))) == expected


@pytest.mark.parametrize(("objective", "expected"), [("dpo", 1), ("kto", 0), ("sft", 0)])
def test_equal_outcomes_leave_the_count_if_the_objective_compares_attempts(objective: str, expected: int) -> None:
    assert admitted_after_equals(settings_of(objective=objective)) == expected


def test_an_unlimited_fleet_has_no_admission() -> None:
    assert admission_of(Settings.model_validate({"fleet": {"max_ahead": -1}})) is None


def test_relief_grows_until_a_version_comes() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=4)
    admitted(admission)
    relieved = []
    for _ in range(3):
        admission.relieve()
        relieved.append(admitted(admission))
    assert relieved == [1, 2, 4]
    admission.advance(1, 0.0)
    admitted(admission)
    admission.relieve()
    assert admitted(admission) == 1


def test_relief_waits_longer_if_versions_come_slowly() -> None:
    admission = Admission(per_version=8, max_ahead=1, group_size=4)
    assert admission.relief_after_s() == MIN_RELIEF_S
    admission.advance(1, 0.0)
    admission.advance(2, 60.0)
    assert admission.relief_after_s() > 60.0


@given(st.integers(1, 4), st.integers(0, 3), st.lists(st.booleans(), max_size=30))
def test_agents_never_run_further_ahead_than_max_ahead(groups: int, max_ahead: int, published: list[bool]) -> None:
    size = 4
    admission = Admission(per_version=groups * size, max_ahead=max_ahead, group_size=size)
    started = version = 0
    for comes in published:
        if comes and started > version * groups:  # the learner cannot publish what it has not been given
            version += 1
            admission.advance(version, 0.0)
        started += admitted(admission)
        assert started == (max_ahead + version + 1) * groups
