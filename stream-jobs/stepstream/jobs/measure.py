"""The `measure` job: absolute, versioned statistics of each trajectory and cohort.

Run it as `python -m stepstream.jobs.measure`. Reads `labeled-trajectories`, writes `trajectory-stats`: one snapshot
per trajectory and cohort that a batch touched, and `component-stats`: one per cohort and period. A snapshot says how
things stand after the offset in its `version`, so that the newest one replaces all others, and nothing is ever added
up twice.
"""

from collections.abc import Callable
from typing import ClassVar

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.jobs.statistics.fold import LABELS, NAME, VERSION, MeasureFold


class Measure:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = (LABELS,)
    remembers: ClassVar[str | None] = None
    max_event_bytes: int | None = None

    def fold(self, state: PartitionState) -> MeasureFold:
        """One partition."""
        return MeasureFold()


def main(settings: Settings, stop: Stop) -> None:
    """Runs the job until asked to stop."""
    job = Measure()

    def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
        return FoldProcessor(settings, job, cancelled)

    run_job(settings, stop, NAME, job.inputs, make)


if __name__ == "__main__":
    run(NAME, main)
