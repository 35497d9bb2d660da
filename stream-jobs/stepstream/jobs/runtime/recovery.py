"""Bring the state of partitions up to the group's committed offsets, with the input topics as change log.

State that is up to date is only opened. State that is missing (new machine, deleted folder) or behind (another worker
held the partition) is rebuilt: `Recovery` folds the input from the state's position on. It publishes nothing, because
the results were published before the offsets were committed.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.fold import FoldJob, Partition
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.state import Changes, PartitionState

log = logging.getLogger(__name__)

_CLOCK_SKEW_MS = 600_000
"""Allowed difference between the clocks of workers and brokers."""

FoldBatch = Callable[[Partition, list[Record], Changes, Outputs], None]
Decode = Callable[[Record], dict[str, Any]]
MissingOffsets = Mapping[str, tuple[int, int]]
"""Offsets [begin, end) to fold again, by input topic."""


class Recovery:
    """Opens partitions of one job. Use from one thread."""

    def __init__(
        self,
        job: FoldJob,
        folder: Path,
        reader: LogReader,
        decode: Decode,
        fold_batch: FoldBatch,
        outputs: Callable[[], Outputs],
    ) -> None:
        self._job, self._folder, self._reader = job, folder, reader
        self._decode, self._fold_batch, self._outputs = decode, fold_batch, outputs

    def open(self, numbers: Iterable[int]) -> list[Partition]:
        """Open partitions whose state is at the committed offsets or ahead of them; rebuild where needed.

        Raises:
            Cancelled: the work was cancelled while waiting for a broker or the registry.
            Fatal: another process holds a state folder.
        """
        states = []
        try:
            identity = self._reader.identity(self._job.inputs)
            missing: dict[int, MissingOffsets] = {}
            partitions = {}
            for number in sorted(numbers):
                state = PartitionState(self._folder / str(number))
                states.append(state)
                missing[number] = self._synchronize(number, state, identity)
                partitions[number] = Partition(number, state, self._job.fold(state))
            behind = {number: offsets for number, offsets in missing.items() if offsets}
            if behind:
                self._restore_published({number: partitions[number] for number in behind})
                self._replay(partitions, behind)
        except BaseException:
            for state in states:
                state.close()
            raise
        return list(partitions.values())

    def _synchronize(self, number: int, state: PartitionState, identity: str) -> MissingOffsets:
        """Reset state of another log, set missing positions, and return the offsets that the state lacks."""
        bounds = {topic: self._reader.bounds(topic, number) for topic in self._job.inputs}
        is_ahead = any(state.position.get(topic, 0) > high for topic, (_, high) in bounds.items())
        if state.identity != identity or is_ahead:
            if state.identity:
                log.warning("rebuilding the state of %s partition %d: it is of another log", self._job.name, number)
            state.reset(identity)
        position = {topic: state.position.get(topic, low) for topic, (low, _) in bounds.items()}
        if state.position != position:
            state.write(state.begin(), position, state.written_ms)
        committed = self._reader.committed(self._job.inputs, number)
        return {topic: (position[topic], end) for topic, end in committed.items() if end > position[topic]}

    def _restore_published(self, partitions: Mapping[int, Partition]) -> None:
        """Pass the events that this job published to the folds, if the job asks for them."""
        topic = self._job.restored_topic
        if topic is None:
            return
        since_ms = min(partition.state.written_ms for partition in partitions.values())
        offsets = self._reader.since(topic, max(0, since_ms - _CLOCK_SKEW_MS))
        for batch in self._reader.read(offsets):
            changes = {number: partition.state.begin() for number, partition in partitions.items()}
            for record in batch:
                try:
                    event = self._decode(record)
                except InvalidRecord:
                    continue  # this job publishes only valid events
                number = self._reader.partition_of(self._job.inputs[0], event["trajectory_id"])
                if number in partitions:
                    partitions[number].fold.restore_published(event, changes[number])
            for number, partition in partitions.items():
                partition.state.write(changes[number], {}, partition.state.written_ms)

    def _replay(self, partitions: Mapping[int, Partition], missing: Mapping[int, MissingOffsets]) -> None:
        log.info("rebuilding the state of %s: %s", self._job.name, dict(missing))
        offsets = {(topic, number): o for number, by_topic in missing.items() for topic, o in by_topic.items()}
        by_partition = attrgetter("partition")
        for batch in self._reader.read(offsets):
            for number, records in groupby(sorted(batch, key=by_partition), by_partition):
                self._fold_without_publishing(partitions[number], list(records))
        for number, by_topic in missing.items():
            state = partitions[number].state
            state.write(state.begin(), {topic: end for topic, (_, end) in by_topic.items()}, state.written_ms)

    def _fold_without_publishing(self, partition: Partition, records: list[Record]) -> None:
        state = partition.state
        changes, out = state.begin(), self._outputs()
        out.replaying = True
        self._fold_batch(partition, records, changes, out)
        position = {record.topic: record.offset + 1 for record in records}
        state.write(changes, position, state.written_ms)
        for record in records:
            metrics.REPLAYED.labels(record.topic).inc()
