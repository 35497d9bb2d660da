"""Let the folds of partitions take their decisions in time.

A fold that raises would end this worker, and then each worker that gets the partition. So the changes of its tick are
dropped, the fold is built again from its state, and the tick is tried again after a pause that grows with each
failure. Records and the ticks of other partitions go on. A fault of a service or of the disk ends the worker.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.fold import FoldJob, Partition
from stepstream.jobs.runtime.fold_errors import build_fold, describe, is_of_fold, trace
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.state import Changes

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0


@dataclass(frozen=True, slots=True)
class Tick:
    """The results of one partition's tick, which have no effect yet."""

    partition: Partition
    changes: Changes
    out: Outputs


class Ticks:
    """Runs the ticks of one job's partitions. Use from one thread."""

    def __init__(self, job: FoldJob, reader: LogReader, outputs: Callable[[], Outputs]) -> None:
        self._job, self._reader, self._outputs = job, reader, outputs

    def run(self, partitions: Iterable[Partition], now_ms: int) -> Iterator[Tick]:
        """Yield the results of the folds that have decisions to take and whose inputs are folded up to a time.

        A timeout needs proof that no record came. After a standstill, the backlog must be folded first.
        """
        ready = [partition for partition in partitions if monotonic() >= partition.next_tick_s]
        due = [p for p in ready if p.pending_tick is None and self._is_due(p, now_ms)]
        ends = self._reader.ends((topic, p.number) for p in due for topic in self._job.inputs) if due else {}
        for partition in due:
            partition.pending_tick = now_ms, {topic: ends[topic, partition.number] for topic in self._job.inputs}
        for partition in ready:
            if partition.pending_tick is None:
                continue
            tick_ms, until = partition.pending_tick
            if all(partition.state.position[topic] >= end for topic, end in until.items()):
                partition.pending_tick = None
                tick = self._run_one(partition, tick_ms)
                if tick is not None:
                    yield tick

    def _is_due(self, partition: Partition, now_ms: int) -> bool:
        """Return True if the fold has decisions to take; False if it raises, and its tick is postponed."""
        try:
            return partition.fold.due(now_ms)
        except Exception as error:
            if not is_of_fold(error):
                raise
            self._postpone(partition, error)
            return False

    def _run_one(self, partition: Partition, tick_ms: int) -> Tick | None:
        """Run the tick of one partition; return None if its fold raises."""
        tick = Tick(partition, partition.state.begin(), self._outputs())
        try:
            partition.fold.tick(tick_ms, tick.changes, tick.out)
        except Exception as error:
            if not is_of_fold(error):
                raise
            self._postpone(partition, error)
            return None
        partition.failed_ticks = 0
        return tick

    def _postpone(self, partition: Partition, error: Exception) -> None:
        partition.fold = build_fold(self._job, partition.number, partition.state)
        # The exponent has a bound, since a tick may fail for months.
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(partition.failed_ticks, 30), _LONGEST_PAUSE_S)
        partition.failed_ticks += 1
        partition.next_tick_s = monotonic() + pause_s
        metrics.FAILED_TICKS.inc()
        log.error("%s: the tick of partition %d has no effect and is tried again in %.0f s: %s\n%s", self._job.name,
                  partition.number, pause_s, describe(error), trace(error))  # fmt: skip
