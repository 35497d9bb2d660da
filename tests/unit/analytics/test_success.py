"""Success over tasks, and its intervals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.analytics import bootstrap
from stepstream.analytics.success import (
    Attempts,
    compare,
    pass_at_k,
    pass_hat_k,
    pooled_standard_errors,
    share,
    task_pass_hat_k,
    wilson,
)

FIVE = [Attempts(8, 8), Attempts(8, 6), Attempts(8, 3), Attempts(8, 0), Attempts(5, 4)]

TASKS = st.lists(
    st.integers(1, 9).flatmap(lambda n: st.builds(Attempts, st.just(n), st.integers(0, n))), min_size=1, max_size=8
)


def test_vectors_of_pass_k() -> None:
    assert pass_at_k(FIVE, 1).value == pytest.approx(0.585, abs=1e-6)
    assert pass_at_k(FIVE, 3).value == pytest.approx(0.764286, abs=1e-6)
    assert pass_hat_k(FIVE, 3).value == pytest.approx(0.355, abs=1e-6)
    tasks = [task_pass_hat_k(task, 3) for task in FIVE]
    assert tasks == pytest.approx([1, 0.357143, 0.017857, 0, 0.4], abs=1e-6)
    longest = pass_at_k(FIVE, 8)
    assert longest.value == pytest.approx(0.75)
    assert (longest.tasks, longest.n, longest.left_out) == (4, 32, 1)
    assert pass_hat_k(FIVE, 8).value == pytest.approx(0.25)
    assert "9 attempts" in pass_at_k(FIVE, 9).reason


def test_vectors_of_intervals() -> None:
    assert wilson(7, 10) == pytest.approx((0.396778, 0.892209), abs=1e-6)
    assert wilson(0, 20) == pytest.approx((0.0, 0.161125), abs=1e-6)
    estimate = pass_at_k(FIVE, 1)
    assert (estimate.low, estimate.high) == pytest.approx((0.235, 0.870), abs=5e-4)
    assert estimate.few
    assert pooled_standard_errors(FIVE) == pytest.approx((0.567568, 0.081445, 0.167564), abs=1e-6)
    assert pooled_standard_errors([]) is None
    assert share(0, 0).reason


def test_a_comparison_pairs_the_tasks() -> None:
    hard_and_easy = {f"{i}": Attempts(4, i % 5) for i in range(40)}
    better = {task: Attempts(4, min(4, a.successes + 1)) for task, a in hard_and_easy.items()}
    found = compare(better | {"new": Attempts(4, 4)}, hard_and_easy)
    assert found.value == pytest.approx(0.2)
    assert found.low is not None
    assert found.low > 0.1  # unpaired, the spread between tasks hides it: ±0.15
    assert (found.tasks, found.left_out) == (40, 1)
    assert compare({"a": Attempts(1, 1)}, {"b": Attempts(1, 1)}).value is None


@given(TASKS, st.integers(1, 6))
def test_bounds_order_and_monotonicity(tasks: list[Attempts], k: int) -> None:
    at, hat = pass_at_k(tasks, k), pass_hat_k(tasks, k)
    assert at.value == pytest.approx(pass_at_k(tasks[::-1], k).value)
    if at.value is None or hat.value is None:
        return
    assert at.low is not None
    assert at.high is not None
    assert 0 <= hat.value <= at.value + 1e-12 <= 1 + 1e-9
    assert at.low - 1e-9 <= at.value <= at.high + 1e-9
    enough = [task for task in tasks if task.n > k]
    if enough:
        more, fewer = pass_at_k(enough, k + 1).value, pass_at_k(enough, k).value
        assert more is not None
        assert fewer is not None
        assert more >= fewer - 1e-12


def test_the_same_seed_gives_the_same_interval() -> None:
    values = [i / 20 for i in range(20)]
    assert bootstrap.mean(values, n=20, seed=3) == bootstrap.mean(values, n=20, seed=3)
    assert bootstrap.mean(values, n=20, seed=3) != bootstrap.mean(values, n=20, seed=4)


def test_a_ratio_without_a_denominator_is_undefined() -> None:
    assert bootstrap.ratio([1.0], [0.0]).reason == "nothing to divide by"
    assert bootstrap.ratio([], []).value is None
    mixed = bootstrap.ratio([0.0, 1.0], [0.0, 2.0])  # resamples of the first alone have no value
    assert (mixed.value, mixed.low, mixed.high) == pytest.approx((0.5, 0.5, 0.5))
