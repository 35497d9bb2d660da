"""Cost, CLEAR, long horizons, reliability and calibration."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.analytics.calibration import auroc, brier, brier_skill, calibration, expected_calibration_error
from stepstream.analytics.cost import (
    clear_composite,
    cost_normalized_accuracy,
    cost_per_success,
    min_max,
    policy_adherence,
    sla_compliance,
    spread,
)
from stepstream.analytics.estimate import Estimate, undefined
from stepstream.analytics.long_horizon import Run as Length
from stepstream.analytics.long_horizon import hazard, projected_success, step_success_gm, survival, survival_at
from stepstream.analytics.reliability import (
    Run,
    consistency,
    outcome_consistency,
    overall,
    predictability,
    resource_consistency,
    robustness,
    safety,
    tool_order_consistency,
    tool_share_consistency,
    unbiased_outcome_consistency,
)

STATED = [0.95, 0.9, 0.85, 0.7, 0.65, 0.6, 0.35, 0.3, 0.1, 1.0]
RIGHT = [bool(y) for y in (1, 1, 0, 1, 0, 1, 0, 1, 0, 1)]


def test_vectors_of_clear() -> None:
    usd, good = [0.02, 0.05, 0.01, 0.10], [True, False, True, True]
    assert cost_normalized_accuracy(usd, good).value == pytest.approx(1666.666667, abs=1e-6)
    assert cost_per_success(usd, good).value == pytest.approx(0.06)
    assert sla_compliance([1.2, 2.9, 3.0, 4.1], 3).value == pytest.approx(0.75)
    assert policy_adherence(3, 40).value == pytest.approx(0.925)
    parts = {"c": min_max(0.5, [0.1, 2.1]), "l": min_max(4, [2, 10]), "e": 0.8, "a": 0.925, "r": 0.6}
    assert clear_composite(parts).value == pytest.approx(0.775)


def test_costs_without_data_are_null_with_a_reason() -> None:
    assert cost_per_success([0.1], [False]).reason == "no attempt succeeded"
    assert cost_normalized_accuracy([0.0], [True]).reason == "the attempts cost nothing"
    assert cost_per_success([], []).value is None
    assert clear_composite({"c": min_max(1, [1, 1]), "e": 0.8}).reason == "undefined: c"
    assert spread([]).p95 is None
    with pytest.raises(ValueError, match="5 violations"):
        policy_adherence(5, 4)


def test_vectors_of_long_horizons() -> None:
    assert step_success_gm(0.8, 10) == pytest.approx(0.977933, abs=1e-6)
    assert projected_success(0.8, 10, 50) == pytest.approx(0.327680, abs=1e-6)
    runs = [Length(2, True), Length(3, False), Length(3, True), Length(4, False), Length(5, False), Length(5, True)]
    assert survival(runs) == pytest.approx([1, 0.833333, 0.666667, 0.666667, 0.333333], abs=1e-6)
    assert hazard(runs) == pytest.approx(0.136364, abs=1e-6)
    far, near = survival_at(runs, 10), survival_at(runs, 3)
    assert (far.estimate.value, near.estimate.value) == pytest.approx((0.230839, 0.666667), abs=1e-6)
    assert (far.extrapolated, near.extrapolated) == (True, False)
    assert projected_success(0.5, 22 / 6, 10) == pytest.approx(0.151011, abs=1e-6)
    assert survival_at([], 3).estimate.reason == "no run"


@given(st.lists(st.builds(Length, st.integers(1, 12), st.booleans()), min_size=1, max_size=20))
def test_survival_never_rises(runs: list[Length]) -> None:
    curve = survival(runs)
    assert len(curve) == max(run.steps for run in runs)
    assert all(0 <= later <= earlier <= 1 for earlier, later in itertools.pairwise(curve))
    assert curve == survival(runs[::-1])


def test_vectors_of_reliability() -> None:
    assert outcome_consistency(8, 6) == pytest.approx(0.25)
    assert unbiased_outcome_consistency(8, 6) == pytest.approx(0.142857, abs=1e-6)
    tools = [["read", "edit", "test"], ["read", "read", "edit", "test"], ["edit", "test"]]
    assert tool_share_consistency(tools) == pytest.approx(0.825709, abs=1e-6)
    assert tool_order_consistency(tools) == pytest.approx(0.638889, abs=1e-6)
    assert resource_consistency([[900], [1100], [1000], [1400]]) == pytest.approx(0.821695, abs=1e-6)
    assert robustness(0.62, 0.70).value == pytest.approx(0.885714, abs=1e-6)
    assert robustness(0.62, 0).reason == "plain accuracy is 0"
    safe = safety([0.25, 0.5, 1] + [0.0] * 7)
    figures = [safe.compliance.value, safe.harm.value, safe.safety.value]
    assert figures == pytest.approx([0.7, 0.416667, 0.825], abs=1e-6)
    assert safety([0.0]).harm.value is None
    assert safety([]).safety.reason == "no run"


def test_reliability_is_undefined_where_a_dimension_is() -> None:
    runs = [Run(True, ("read", "edit"), (1.0, 2.0)), Run(True, ("read",), (2.0, 2.0))]
    figures = consistency({"a": runs, "b": runs[:1]})
    assert figures["outcome"].value == 1.0
    assert figures["outcome"].left_out == 1
    whole = overall(figures, [Estimate(0.8), Estimate(1.0)], Estimate(0.9))
    assert whole.value is not None
    assert 0 < whole.value < 1
    assert overall(figures, [undefined("no plain run")], Estimate(0.9)).reason == "undefined: robustness 0"
    assert predictability([], [])["brier"].reason == "no attempt stated a confidence"


def test_vectors_of_calibration() -> None:
    assert expected_calibration_error(STATED, RIGHT) == pytest.approx(0.2)
    assert brier(STATED, RIGHT) == pytest.approx(0.203)
    assert brier_skill(STATED, RIGHT) == pytest.approx(0.154167, abs=1e-6)
    assert auroc(STATED, RIGHT) == pytest.approx(0.75)
    assert calibration([0.5], [True]).auroc is None
    assert calibration([], []).reason


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_calibration_is_bounded_and_ignores_order(cases: list[tuple[float, bool]]) -> None:
    there, back = (calibration(*map(list, zip(*each, strict=True))) for each in (cases, cases[::-1]))
    for name in ("ece", "brier", "auroc"):
        value = getattr(there, name)
        assert value == (None if getattr(back, name) is None else pytest.approx(getattr(back, name)))
        assert value is None or -1e-12 <= value <= 1 + 1e-12
    area = auroc([1 - p for p, _ in cases], [y for _, y in cases])
    if there.auroc is not None and len({1 - p for p, _ in cases}) == len({p for p, _ in cases}):
        assert area == pytest.approx(1 - there.auroc)
