"""Measure a judge on cases that people have labelled, and decide if its verdicts may count. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stepstream.analytics.agreement import cohen, krippendorff
from stepstream.analytics.calibration import brier, expected_calibration_error
from stepstream.analytics.success import wilson
from stepstream.jobs.judging.scaling import Scaling, fit

Mode = Literal["score", "pair", "next_state"]

_Z_ONE_SIDED_95 = 1.6448536269514722
_THRESHOLD = 0.5
"""Lowest score that means `right`."""
_MIN_HALF = 20
"""Fewest cases in each half; with fewer, no scaling is fitted."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Requirements on a calibration: fewest cases, and smallest agreement, kappa and order consistency."""

    items: int
    agreement: float
    kappa: float
    order_consistency: float


DEFAULT_GATE = Gate(items=50, agreement=0.75, kappa=0.4, order_consistency=0.7)


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """Case with the labels of people and the judge's verdict; 1 right or better, 0 wrong or worse, 0.5 neither."""

    id: str
    ratings: Sequence[float]
    """Label of each person."""
    judged: float | None
    """Score, or outcome of a pair; None: the answer could not be parsed."""
    flip: bool = False
    """True for a pair whose two answers contradict each other."""

    @property
    def label(self) -> float:
        """Median of the ratings."""
        ordered = sorted(self.ratings)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def measure_agreement(cases: Sequence[JudgedCase], mode: Mode) -> dict[str, Any]:
    """Return the figures of a calibration, as the fields of a `JudgeCalibration`.

    Flips and unparsed answers are counted, but left out of the agreement. In mode `score`, verdicts are compared as
    right or wrong. A scaling is fitted on one half of the cases, drawn by their ids, and tested on the other. In the
    other modes `neither` is an answer too.

    Raises:
        ValueError: nothing can be compared.
    """
    read = [case for case in cases if case.judged is not None]
    scores = mode == "score"
    clear = [case for case in read if not case.flip and not (scores and case.label == _THRESHOLD)]
    if not clear:
        raise ValueError("the judge gave no answer that can be compared with a label")
    compared = [(case.label, _verdict(case, scores=scores)) for case in clear]
    agreeing, n = sum(left == right for left, right in compared), len(compared)
    kappa, (low, high) = cohen(compared), wilson(agreeing, n)
    figures: dict[str, Any] = {
        "items": n,
        "unread": len(cases) - len(read),
        "flips": sum(case.flip for case in read),
        "order_consistency": 1 - sum(case.flip for case in read) / len(read) if mode == "pair" else None,
        "agreement": agreeing / n,
        "agreement_low": low,
        "agreement_high": high,
        "kappa": None if kappa is None else kappa.value,
        "kappa_se": None if kappa is None else kappa.error,
        "raters_alpha": krippendorff([case.ratings for case in cases]),
    }
    return figures | _fit_and_test_scaling(clear) if scores else figures


def rejection_of(record: Mapping[str, Any] | None, gate: Gate) -> str | None:
    """Return the reason why a judge with this calibration may not count; None: it may."""
    if record is None:
        return "not calibrated"
    if record["items"] < gate.items:
        return f"calibrated on {record['items']} cases, fewer than {gate.items}"
    if record["agreement"] < gate.agreement:
        return f"agreement {record['agreement']:.3f} is below {gate.agreement:g}"
    if record["kappa"] is None or record["kappa_se"] is None:
        return "kappa is not defined: labels or verdicts were all the same"
    if (low := record["kappa"] - _Z_ONE_SIDED_95 * record["kappa_se"]) < gate.kappa:
        return f"kappa may be {low:.3f}, below {gate.kappa:g}"
    order = record["order_consistency"]
    if order is not None and order < gate.order_consistency:
        return f"order consistency {order:.3f} is below {gate.order_consistency:g}"
    return None


def scaling_of(record: Mapping[str, Any]) -> Scaling | None:
    """Return the scaling of a record; None: it has none."""
    temperature, bias = record["temperature"], record["bias"]
    return None if temperature is None or bias is None else Scaling(temperature, bias)


def _verdict(case: JudgedCase, *, scores: bool) -> float:
    assert case.judged is not None
    return float(case.judged >= _THRESHOLD) if scores else case.judged


def _fit_and_test_scaling(cases: Sequence[JudgedCase]) -> dict[str, Any]:
    """Return the scaling and its figures on the test half. Without an improvement, temperature and bias are None."""
    ordered = sorted(cases, key=lambda case: hashlib.sha256(case.id.encode()).digest())
    fitted, tested = ordered[::2], ordered[1::2]
    if len(tested) < _MIN_HALF:
        return {}
    scaling = fit([case.judged or 0.0 for case in fitted], [case.label > _THRESHOLD for case in fitted])
    if scaling is None:
        return {}
    raw, outcomes = [case.judged or 0.0 for case in tested], [case.label > _THRESHOLD for case in tested]
    scaled = [scaling.apply(score) for score in raw]
    better = brier(scaled, outcomes) <= brier(raw, outcomes)
    return {
        "temperature": scaling.temperature if better else None,
        "bias": scaling.bias if better else None,
        "brier_raw": brier(raw, outcomes),
        "brier": brier(scaled, outcomes),
        "ece_raw": expected_calibration_error(raw, outcomes),
        "ece": expected_calibration_error(scaled, outcomes),
    }
