"""Agreement of raters, and the correction of judged rates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.analytics.agreement import Preferences, cohen, krippendorff, true_rate


def test_vectors() -> None:
    pairs = [(1, 1)] * 45 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 20
    assert cohen(pairs) == pytest.approx((0.586207, 0.096305), abs=1e-6)
    ratings = ["1101.0", "100110", "110.11"]
    assert krippendorff([[row[i] for row in ratings if row[i] != "."] for i in range(6)]) == pytest.approx(0.5)
    verdicts = Preferences(42, 30, 28)
    assert verdicts.share_of_first == pytest.approx(0.583333, abs=1e-6)
    assert verdicts.flip_rate == pytest.approx(0.28)
    assert true_rate(0.7, 0.9, 0.666667).value == pytest.approx(0.647059, abs=1e-6)


def test_undefined_figures() -> None:
    assert cohen([(1, 1)] * 9) is None
    assert krippendorff([[1], [0]]) is None
    assert Preferences(0, 0, 0).share_of_first is None
    assert "chance" in true_rate(0.7, 0.5, 0.5).reason


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1))
def test_kappa_is_symmetric_and_at_most_1(pairs: list[tuple[int, int]]) -> None:
    kappa, turned = cohen(pairs), cohen([(b, a) for a, b in pairs])
    if kappa is None or turned is None:
        assert kappa is turned
        return
    assert kappa == pytest.approx(turned)
    assert kappa.value <= 1 + 1e-12


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=6))
def test_alpha_ignores_the_order_of_units_and_ratings(units: list[list[int]]) -> None:
    turned = [unit[::-1] for unit in reversed(units)]
    assert krippendorff(units) == (pytest.approx(krippendorff(turned)) if krippendorff(turned) is not None else None)
