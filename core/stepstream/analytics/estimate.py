"""Define `Estimate`: a figure, its interval, the data behind it and the reason where it is undefined. Pure."""

from dataclasses import dataclass

FEW_TASKS = 10
"""Below as many tasks a bootstrap interval is too narrow to rely on."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Figure of a report. `value` None: undefined, for `reason`."""

    value: float | None
    low: float | None = None
    """Lower end of the interval; None: no interval is defined."""
    high: float | None = None
    n: int = 0
    """Observations: attempts, runs, calls or cases."""
    tasks: int = 0
    """Tasks (clusters) that the average is over."""
    reason: str = ""
    """Why the value is undefined; empty: it is defined."""
    left_out: int = 0
    """Tasks or observations that the definition excludes."""

    @property
    def few(self) -> bool:
        """True if the interval rests on too few tasks to rely on."""
        return self.tasks < FEW_TASKS


def undefined(reason: str, n: int = 0, tasks: int = 0, left_out: int = 0) -> Estimate:
    """Return an estimate without a value."""
    return Estimate(None, n=n, tasks=tasks, reason=reason, left_out=left_out)
