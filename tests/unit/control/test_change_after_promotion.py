"""Test that dependent trajectories raise no fall after a promotion, and that a real fall of groups is found."""

import numpy as np
import pytest

from stepstream.analytics.success import Attempts
from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import Decision, History, Outcome, Promotion, Snapshot, Source, Stratum

NOW = 20_000 * 86_400_000_000
HISTORY = History(promotion=Promotion("weights", "8", "7", NOW - 3_600_000_000))
SIZE = 8


def groups_of_attempts(rate: float, groups: int, seed: int) -> list[Outcome]:
    """Return attempts of groups whose tasks differ in difficulty: intraclass correlation 0.6."""
    drawn = np.random.default_rng(seed)
    concentration = 1 / 0.6 - 1
    difficulty = drawn.beta(rate * concentration, (1 - rate) * concentration, groups)
    succeeded = drawn.random((groups, SIZE)) < difficulty[:, None]
    return [Outcome("stable", bool(one), f"g:{group}") for group, row in enumerate(succeeded) for one in row]


def decided(outcomes: list[Outcome], *families: str) -> Decision:
    """Decide after a promotion; before it each family succeeded in half of 2,000 clusters."""
    strata = {name: Stratum(Attempts(2000, 1000), Attempts(0, 0)) for name in families or ("",)}
    source = Source("trajectories", "1:2")
    seen = Snapshot("default", "shop", "m", NOW, NOW, source, outcomes=tuple(outcomes), strata=strata)
    return decide(seen, HISTORY, ControlPolicy())


def test_groups_of_attempts_at_equal_success_are_no_fall() -> None:
    """The bound is 1.1 % for 250 groups. Attempts that count alone: nearly every fleet raises an alarm."""
    assert not [seed for seed in range(40) if decided(groups_of_attempts(0.5, 250, seed)).action == "rollback"]


def test_a_fall_of_groups_of_attempts_is_found_at_its_first_trajectory() -> None:
    sound, fallen = groups_of_attempts(0.5, 100, 1), groups_of_attempts(0.15, 300, 2)
    decision = decided([*sound, *(Outcome("stable", one.success, f"later {one.cluster}") for one in fallen)])
    assert (decision.rule, decision.action) == ("change_after_promotion", "rollback")
    figures = {figure.name: figure for figure in decision.evidence}
    change = figures["change_at"].value
    assert change == pytest.approx(len(sound) + 1, abs=60 * SIZE)
    assert change is not None
    assert change % SIZE == 1, "the place counts trajectories, and is the first one of a group"
    assert figures["cusum"].n < 400, "a group counts once"


def test_one_user_whose_tasks_all_fail_is_no_fall() -> None:
    families = [f"family {number}" for number in range(30)]
    others = [Outcome("stable", number % 2 == 0, stratum=families[0]) for number in range(100)]
    failed = [Outcome("stable", success=False, cluster="u:7:2026-11-01", stratum=one) for one in families * 4]
    assert decided(others + failed, *families).action == "hold"
    alone = [Outcome("stable", success=False, stratum=one) for one in families * 4]
    assert decided(others + alone, *families).action == "rollback"
