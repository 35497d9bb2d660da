"""A success rate has a Wilson interval; without attempts it is null."""

import pytest

from stepstream.demo.run_stats import Rate


def test_the_wilson_interval_matches_reference_values() -> None:
    assert Rate(7, 10).interval == pytest.approx((0.396778, 0.892209), abs=1e-6)
    assert Rate(0, 20).interval == pytest.approx((0.0, 0.161125), abs=1e-6)


def test_a_rate_without_attempts_is_null() -> None:
    assert Rate(0, 0).facts("s") == {"s": None, "s_interval": None, "s_successes": 0, "s_n": 0}
