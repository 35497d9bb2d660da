"""Moments over groups: sums in any order, standard errors that know of groups, Student's tail."""

import math
import random
import statistics

import pytest
from group_moments import moments
from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.statistics.moments import Moments, effect, p_rise, student_tail


# P(T > t) from tables: NIST/SEMATECH e-Handbook, section 1.3.6.7.2; the last two by SciPy.
@pytest.mark.parametrize(
    ("t", "freedom", "tail"),
    [
        (0.0, 5, 0.5),
        (6.313752, 1, 0.05),
        (2.015048, 5, 0.05),
        (2.763769, 10, 0.01),
        (3.090232, 1e9, 0.001),
        (-2.763769, 10, 0.99),
        (5.0, 30, 1.164834e-05),
        (8.0, 62.5, 1.878274e-11),
    ],
)
def test_students_tail(t: float, freedom: float, tail: float) -> None:
    assert student_tail(t, freedom) == pytest.approx(tail, rel=1e-5, abs=0.0)


@given(st.floats(0, 40), st.floats(1, 1e6), st.floats(0.001, 5))
def test_students_tail_falls(t: float, freedom: float, more: float) -> None:
    assert 0 <= student_tail(t + more, freedom) <= student_tail(t, freedom) <= 0.5
    assert student_tail(-t, freedom) == pytest.approx(1 - student_tail(t, freedom))


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=30))
def test_groups_of_one_give_the_ordinary_standard_error(values: list[float]) -> None:
    found = moments(*([value] for value in values))
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert found.variance_of_mean == pytest.approx(statistics.variance(values) / len(values), abs=1e-9)
    assert found.spread == pytest.approx(statistics.pstdev(values), abs=1e-5)


def test_identical_attempts_of_a_group_count_as_one() -> None:
    rng = random.Random(0)
    values = [rng.random() for _ in range(20)]
    once, eightfold = moments(*([value] for value in values)), moments(*([value] * 8 for value in values))
    assert eightfold.variance_of_mean == pytest.approx(once.variance_of_mean)


_GROUPS = st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=4), min_size=1, max_size=8)


@given(_GROUPS, _GROUPS)
def test_sums_of_parts_are_those_of_the_whole(some: list[list[float]], others: list[list[float]]) -> None:
    assert moments(*some) + moments(*others) == moments(*reversed(others), *some)


def test_welchs_test_agrees_with_scipy() -> None:
    """scipy.stats.ttest_ind(second, first, equal_var=False, alternative="greater") of SciPy 1.18."""
    first = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]
    second = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.5, 23.9]
    one, two = (moments(*([value] for value in values)) for values in (first, second))
    assert p_rise(one, two) == pytest.approx(0.0043412844318995465)
    assert p_rise(two, one) == pytest.approx(1 - p_rise(one, two))


def test_series_that_never_vary() -> None:
    low, high = moments([0.0], [0.0]), moments([1.0, 1.0], [1.0])
    assert (p_rise(low, high), p_rise(high, low), p_rise(low, low)) == (0.0, 1.0, 1.0)
    assert (effect(low, high), effect(high, low), effect(low, low)) == (math.inf, -math.inf, 0.0)
    assert p_rise(moments([0.0]), high) == p_rise(Moments(), high) == 1.0
