"""Compare a tool's errors and latency in a window with its baseline (per tool, model and error class). Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from stepstream.analytics.success import wilson

Z_99_5 = 2.5758293035489004
"""The alert uses a 99 % interval: of sound windows of 30 to 120 calls, "rate > 2p₀" alone fires in 10 to 12 %."""
FACTOR = 2
MIN_CALLS = 20
MIN_UNKNOWN = 3
LATENCY_WINDOWS = 3


class Calls(NamedTuple):
    """Calls of a tool and those among them that failed with the error class."""

    n: int
    errors: int


class ToolAlert(NamedTuple):
    """Comparison of a window with the baseline."""

    raised: bool
    baseline: float
    """Share of errors before."""
    low: float | None
    """Lower bound of the window's share; None: no call."""
    reason: str
    """Why the alert is not raised; empty: it is."""


def baseline_rate(before: Calls) -> float:
    """Return p₀ = (x+½)/(n+1), the baseline's share of errors with a Jeffreys prior: 7 days without the window."""
    return (before.errors + 0.5) / (before.n + 1)


def tool_alert(before: Calls, window: Calls, *, known: bool = True) -> ToolAlert:
    """Decide if a window's errors exceed the baseline: n ≥ 20 and Wilson's lower bound above 2p₀.

    An error class that nobody has classified (`known` False) raises the alert at 3 errors.
    """
    expected = baseline_rate(before)
    low = wilson(window.errors, window.n, Z_99_5)[0] if window.n else None
    if not known:
        enough = window.errors >= MIN_UNKNOWN
        return ToolAlert(enough, expected, low, "" if enough else f"fewer than {MIN_UNKNOWN} unknown errors")
    if low is None or window.n < MIN_CALLS:
        return ToolAlert(False, expected, low, f"{window.n} calls, fewer than {MIN_CALLS}")
    if low <= FACTOR * expected:
        return ToolAlert(False, expected, low, f"lower bound {low:.4f} ≤ {FACTOR}·{expected:.4f}")
    return ToolAlert(True, expected, low, "")


def latency_alert(baseline_p95: float, window_p95s: Sequence[float]) -> bool:
    """Return True if p95 was at least twice the baseline's in each of the last 3 windows (same unit)."""
    recent = window_p95s[-LATENCY_WINDOWS:]
    return len(recent) == LATENCY_WINDOWS and baseline_p95 > 0 and min(recent) >= FACTOR * baseline_p95
