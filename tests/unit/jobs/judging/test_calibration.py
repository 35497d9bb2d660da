"""Calibration: its figures, and the gate that a judge must pass."""

import random
from typing import Any

import pytest

from stepstream.jobs.judging.calibration import Gate, JudgedCase, measure_agreement, rejection_of
from stepstream.jobs.judging.scaling import logit, sigmoid

GATE = Gate(50, 0.75, 0.4, 0.7)
GOOD: dict[str, Any] = {
    "event_id": "c",
    "items": 80,
    "agreement": 0.9,
    "kappa": 0.8,
    "kappa_se": 0.05,
    "order_consistency": None,
    "temperature": None,
    "bias": None,
}


@pytest.mark.parametrize(
    ("fields", "lacks"),
    [
        ({"items": 49}, "49 cases, fewer than 50"),
        ({"agreement": 0.74}, "agreement 0.740"),
        ({"kappa": 0.45}, "kappa may be 0.368"),
        ({"kappa": None}, "kappa is not defined"),
        ({"order_consistency": 0.69}, "order consistency 0.690"),
    ],
)
def test_a_weak_calibration_is_rejected_with_a_reason(fields: dict[str, Any], lacks: str) -> None:
    assert rejection_of(GOOD, GATE) is None
    assert rejection_of(None, GATE) == "not calibrated"
    assert lacks in str(rejection_of(GOOD | fields, GATE))


def test_flips_and_unparsed_answers_are_counted_and_left_out() -> None:
    cases = [JudgedCase(f"w{i}", [1], 1.0) for i in range(42)] + [JudgedCase(f"l{i}", [0], 1.0) for i in range(30)]
    cases += [JudgedCase(f"f{i}", [1], 0.5, flip=True) for i in range(28)] + [JudgedCase("u", [1], None)]
    figures = measure_agreement(cases, "pair")
    assert (figures["items"], figures["flips"], figures["unread"]) == (72, 28, 1)
    assert figures["order_consistency"] == pytest.approx(0.72)
    assert figures["agreement"] == pytest.approx(42 / 72)
    with pytest.raises(ValueError, match="no answer"):
        measure_agreement([JudgedCase("u", [1], None)], "pair")


def test_scores_are_compared_as_right_or_wrong_and_scaled() -> None:
    drawn = random.Random(3)
    cases = []
    for number in range(200):
        chance = drawn.random()
        label = float(drawn.random() < chance)
        cases.append(JudgedCase(str(number), [label, label, 1 - label], sigmoid(4 * logit(chance))))
    figures = measure_agreement(cases, "score")
    assert figures["items"] == 200
    assert figures["agreement"] > 0.6
    assert figures["temperature"] > 1.5
    assert figures["brier"] < figures["brier_raw"]
    assert figures["ece"] < figures["ece_raw"]
    assert figures["raters_alpha"] is not None


def test_an_even_split_of_people_means_neither() -> None:
    assert [JudgedCase("", ratings, None).label for ratings in ([1, 0], [1, 1, 0], [0.0], [0, 0.5, 1])] == [
        0.5,
        1,
        0,
        0.5,
    ]
