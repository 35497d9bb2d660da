"""Figures of agreement: share, kappa and alpha."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.judging.agreement import cohen, krippendorff, wilson


def test_figures_of_agreement() -> None:
    assert wilson(7, 10) == pytest.approx((0.396778, 0.892209), abs=1e-6)
    assert wilson(0, 20) == pytest.approx((0.0, 0.161125), abs=1e-6)
    pairs = [(1, 1)] * 45 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 20
    assert cohen(pairs) == pytest.approx((0.586207, 0.096305), abs=1e-6)
    ratings = ["1101.0", "100110", "110.11"]
    assert krippendorff([[row[i] for row in ratings if row[i] != "."] for i in range(6)]) == pytest.approx(0.5)
    assert cohen([(1, 1)] * 9) is None
    assert krippendorff([[1], [0]]) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1))
def test_kappa_is_symmetric_and_at_most_1(pairs: list[tuple[int, int]]) -> None:
    kappa, turned = cohen(pairs), cohen([(b, a) for a, b in pairs])
    if kappa is None or turned is None:
        assert kappa is turned
        return
    assert kappa == pytest.approx(turned)
    assert kappa.value <= 1 + 1e-12
