"""The `measure` job: publish statistics of each trajectory and cohort.

Run it as `python -m stepstream.jobs.measure`. It reads `labeled-trajectories`. It writes one snapshot per trajectory
and cohort touched by a batch to `trajectory-stats`, and one per cohort and period to `component-stats`. A snapshot
holds totals as of the offset in its `version`: the newest replaces all others, so readers never add up.
"""

from collections.abc import Callable
from typing import ClassVar

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.jobs.runtime.expiry import SLACK_DAYS
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.runner import Processor, run_job
from stepstream.jobs.runtime.state import PartitionState
from stepstream.jobs.statistics.fold import NAME, VERSION, MeasureFold
from stepstream.topics.catalogue import LABELED_TRAJECTORIES


class Measure:
    """The job for `FoldProcessor`."""

    name: ClassVar = NAME
    version: ClassVar = VERSION
    inputs: ClassVar[tuple[str, ...]] = (LABELED_TRAJECTORIES,)
    restored_topic: ClassVar[str | None] = None
    max_event_bytes: int | None = None

    def __init__(self, settings: Settings) -> None:
        # The newest revision that `label` can publish counts from the closure; its own follows within a day or two.
        self._keep_days = settings.label.keep_days + SLACK_DAYS
        self._max_trajectories = settings.label.max_trajectories

    def fold(self, state: PartitionState) -> MeasureFold:
        """Return the fold of one partition."""
        return MeasureFold(state, keep_days=self._keep_days, max_trajectories=self._max_trajectories)


def main(settings: Settings, stop: Stop) -> None:
    """Run the job until `stop`."""
    job = Measure(settings)

    def make(settings: Settings, cancelled: Callable[[], bool]) -> Processor:
        return FoldProcessor(settings, job, cancelled)

    run_job(settings, stop, NAME, job.inputs, make)


if __name__ == "__main__":
    run(NAME, main)
