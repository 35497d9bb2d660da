"""Alarms: the changes that raise one, how long it stays active, and its false alarm rate."""

import random
from collections.abc import Callable, Iterable

import pytest
from group_moments import moments
from hypothesis import given, settings
from hypothesis import strategies as st

from stepstream.config import AlarmsSettings
from stepstream.jobs.statistics.alarms import (
    REWARD,
    SUCCESS,
    Period,
    Series,
    Sums,
    active_alarms,
    merge_sums,
    needed_since,
    windows,
)
from stepstream.jobs.statistics.moments import Moments

REWARDED = Series(REWARD, REWARD, 1.0, 1)
SUCCEEDED = Series(SUCCESS, SUCCESS, 0.0, 1)
BONUS = Series("term", "bonus", 0.5, 1)
MALFORMED = Series("shadow", "malformed", 0.0, -1)
EVERY = (REWARDED, SUCCEEDED, BONUS, MALFORMED)
GROUPS, SIZE = 16, 8
RULE = AlarmsSettings(window=GROUPS)


def period(rng: random.Random, shares: dict[Series, float], groups: int = GROUPS) -> dict[Series, Moments]:
    """Series of zeros and ones with these shares of ones; half of a group's attempts at a task are alike."""

    def attempts(share: float) -> list[float]:
        alike = float(rng.random() < share)
        return [alike if rng.random() < 0.5 else float(rng.random() < share) for _ in range(SIZE)]

    return {series: moments(*(attempts(share) for _ in range(groups))) for series, share in shares.items()}


def history(seed: int, *shares: tuple[float, ...], groups: int = GROUPS) -> dict[Period, Sums]:
    """A window for each entry: shares of (reward, success, bonus, malformed); and one that has just begun."""
    rng = random.Random(seed)
    entries = [*shares, shares[-1]]
    return {Period(v, 0): period(rng, dict(zip(EVERY, entry, strict=True)), groups) for v, entry in enumerate(entries)}


HONEST, GAMED, BETTER = (0.4, 0.5, 0.1, 0.1), (0.8, 0.02, 0.9, 0.9), (0.9, 0.9, 0.1, 0.02)


def fallen(periods: dict[Period, Sums], rule: AlarmsSettings = RULE) -> list[tuple[str, str]]:
    return [(finding.falling.name, finding.rising.name) for finding in active_alarms(periods, rule)]


def test_a_rewarded_component_that_rises_while_guards_fall_raises_an_alarm() -> None:
    [shadow, success] = active_alarms(history(0, HONEST, HONEST, GAMED), RULE)
    assert (shadow.falling, shadow.rising) == (MALFORMED, BONUS)
    assert (success.falling, success.rising) == (SUCCEEDED, BONUS)
    assert success.p_value < success.threshold == pytest.approx(0.05 / 6 / 2 / 4)
    assert (success.before.last.version, success.after.first.version) in {(0, 2), (1, 2)}


def test_the_whole_reward_is_named_where_no_component_rose() -> None:
    assert fallen(history(0, HONEST, (0.8, 0.02, 0.1, 0.1))) == [("success", "reward")]


@pytest.mark.parametrize(
    ("then", "why"),
    [
        (BETTER, "everything became better"),
        ((0.4, 0.02, 0.1, 0.1), "nothing rose"),
        ((0.8, 0.5, 0.9, 0.1), "nothing fell"),
        ((0.1, 0.02, 0.02, 0.9), "all became worse"),
    ],
)
def test_either_alone_is_no_alarm(then: tuple[float, ...], why: str) -> None:
    assert fallen(history(0, HONEST, HONEST, then, then)) == [], why


def test_the_direction_of_a_paid_component_is_the_sign_of_its_weight() -> None:
    """A penalty that is paid less often is a rise; a guard of negative weight that is paid more often, a fall."""
    penalty, guard = Series("term", "slow", -1.0, -1), Series("guard", "malformed", -1.0, -1)
    rng = random.Random(0)
    entries: list[dict[Series, float]] = [
        {REWARDED: 0.5, penalty: 0.9, guard: 0.05},
        {REWARDED: 0.5, penalty: 0.1, guard: 0.9},
        {REWARDED: 0.5, penalty: 0.1, guard: 0.9},
    ]
    periods: dict[Period, Sums] = {Period(v, 0): period(rng, shares) for v, shares in enumerate(entries)}
    assert fallen(periods) == [("malformed", "slow")]


def test_an_unpaid_component_raises_no_alarm() -> None:
    shadow = Series("shadow", "length", 0.0, 1)
    rng = random.Random(0)
    entries: list[dict[Series, float]] = [
        {REWARDED: 0.5, shadow: 0.1, SUCCEEDED: 0.9},
        *[{REWARDED: 0.5, shadow: 0.9, SUCCEEDED: 0.1}] * 2,
    ]
    periods: dict[Period, Sums] = {Period(v, 0): period(rng, shares) for v, shares in enumerate(entries)}
    assert fallen(periods) == []


def test_a_small_change_raises_no_alarm_at_any_p_value() -> None:
    periods = history(0, HONEST, (0.8, 0.02, 0.9, 0.1))
    assert fallen(periods, RULE.model_copy(update={"smallest_effect": 5.0})) == []


def test_an_alarm_stays_active_until_half_of_the_change_is_gone() -> None:
    gamed = [HONEST, HONEST, GAMED]
    assert fallen(history(0, *gamed, GAMED, GAMED)) == fallen(history(0, *gamed)) != []
    assert fallen(history(0, *gamed, BETTER)) == []
    assert fallen(history(0, *gamed, BETTER, GAMED)) != []


def test_an_alarm_ends_when_its_base_window_is_too_old() -> None:
    rule = RULE.model_copy(update={"history": 4})
    assert fallen(history(0, HONEST, *[GAMED] * 3), rule) != []
    assert fallen(history(0, HONEST, *[GAMED] * 6), rule) == []


def test_a_slow_drift_shows_against_windows_further_back() -> None:
    slow = history(0, *((0.5, 0.6 - 0.025 * n, 0.1 + 0.04 * n, 0.1) for n in range(20)), groups=64)
    steady = RULE.model_copy(update={"window": 64})
    [finding] = active_alarms(slow, steady)
    assert finding.falling == SUCCEEDED
    assert finding.after.last.version - finding.before.last.version >= 8


def test_a_window_counts_once_a_later_period_has_begun() -> None:
    periods = history(0, HONEST, GAMED)
    newest = max(periods)
    assert [window.last.version for window in windows(periods, GROUPS)] == [0, 1]
    assert fallen({at: sums for at, sums in periods.items() if at != newest}) == []
    assert windows({}, GROUPS) == []


def test_small_periods_make_a_window_together() -> None:
    rng = random.Random(0)
    periods = {Period(-1, hour): period(rng, dict.fromkeys(EVERY, 0.5), groups=5) for hour in range(9)}
    assert [(w.first.hour, w.last.hour) for w in windows(periods, GROUPS)] == [(0, 3), (4, 7)]


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.lists(st.tuples(*[st.floats(0, 1)] * 4), min_size=1, max_size=6), st.randoms())
def test_order_and_partitions_do_not_matter(
    seed: int, shares: list[tuple[float, float, float, float]], rng: random.Random
) -> None:
    first = history(seed, *shares)
    second = history(seed + 1, *shares)
    one = {at: merge_sums([first[at], second[at]]) for at in first}
    order = list(first)
    rng.shuffle(order)
    other = {at: merge_sums([second[at], first[at]]) for at in order}
    assert active_alarms(one, RULE) == active_alarms(other, RULE)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.lists(st.sampled_from([HONEST, GAMED, BETTER]), min_size=1, max_size=14))
def test_forgotten_windows_change_no_alarm(seed: int, shares: list[tuple[float, float, float, float]]) -> None:
    rule = AlarmsSettings(window=GROUPS, history=2)
    periods = history(seed, *shares)
    surplus, first = needed_since(periods, rule)
    needed = {at: sums for at, sums in periods.items() if at >= first}
    assert (surplus, len(needed)) == (max(0, len(shares) - 4), min(len(shares), 4) + 1)
    assert active_alarms(needed, rule, surplus) == active_alarms(periods, rule)


def ever(periods: dict[Period, Sums]) -> bool:
    """True if an alarm was active after any window."""
    versions: Iterable[Period] = sorted(periods)
    return any(active_alarms({at: periods[at] for at in periods if at <= newest}, RULE) for newest in versions)


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.3, 0.3), (0.5, 0.9, 0.05, 0.02)])
def test_an_unchanged_cohort_hardly_ever_raises_an_alarm(shares: tuple[float, ...]) -> None:
    """25 histories of 10 windows each: the level is 5 % of them, and an alarm needs two errors at once."""
    assert sum(ever(history(seed, *[shares] * 10)) for seed in range(25)) <= 1


def test_each_single_test_keeps_its_level() -> None:
    """The alarm's two tests, each alone, at the threshold 0.05: seldom wrong for attempts that depend on each other."""
    from stepstream.jobs.statistics.moments import p_rise

    rng = random.Random(5)
    share: Callable[[], Moments] = lambda: period(rng, {REWARDED: 0.2})[REWARDED]  # noqa: E731
    wrong = sum(p_rise(share(), share()) < 0.05 for _ in range(500))
    assert 10 <= wrong <= 45  # 25 expected, standard deviation 5
