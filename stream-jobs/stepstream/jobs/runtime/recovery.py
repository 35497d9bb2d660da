"""Brings the state of partitions to where the group's committed offsets are: the input topics are the change log.

A store that is there and up to date is just opened. One that is missing (a new machine, a deleted folder) or behind
(another worker had the partition meanwhile) folds the input from where it stands, and publishes nothing: what follows
from it was published before the offsets were committed.
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

_PUBLISHED_MARGIN_MS = 600_000
"""How long before its last write a state may have missed what was published: clocks differ."""

FoldBatch = Callable[[Partition, list[Record], Changes, Outputs], None]
Decode = Callable[[Record], dict[str, Any]]
Behind = Mapping[str, tuple[int, int]]
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
        """Partitions whose state is at the committed offsets, or ahead of them.

        Raises:
            Abandoned: asked to give up while waiting for a broker or the registry.
            Fatal: another process holds a state folder.
        """
        states = []
        try:
            identity = self._reader.identity(self._job.inputs)
            behind: dict[int, Behind] = {}
            partitions = {}
            for number in sorted(numbers):
                state = PartitionState(self._folder / str(number))
                states.append(state)
                behind[number] = self._position(number, state, identity)
                partitions[number] = Partition(number, state, self._job.fold(state))
            late = {number: stretches for number, stretches in behind.items() if stretches}
            if late:
                self._remember({number: partitions[number] for number in late})
                self._replay(partitions, late)
        except BaseException:
            for state in states:
                state.close()
            raise
        return list(partitions.values())

    def _position(self, number: int, state: PartitionState, identity: str) -> Behind:
        """Sees to it that the state belongs to this log and knows where it is in it; returns what it lacks."""
        bounds = {topic: self._reader.bounds(topic, number) for topic in self._job.inputs}
        ahead = any(state.position.get(topic, 0) > high for topic, (_, high) in bounds.items())
        if state.identity != identity or ahead:
            if state.identity:
                log.warning("state of %s partition %d belongs to another log: building it anew", self._job.name, number)
            state.reset(identity)
        known = {topic: state.position.get(topic, low) for topic, (low, _) in bounds.items()}
        if state.position != known:
            state.write(state.begin(), known, state.written_ms)
        committed = self._reader.committed(self._job.inputs, number)
        return {topic: (known[topic], end) for topic, end in committed.items() if end > known[topic]}

    def _remember(self, partitions: Mapping[int, Partition]) -> None:
        """Tells folds what was published about their keys, where they want to know."""
        topic = self._job.remembers
        if topic is None:
            return
        since_ms = min(partition.state.written_ms for partition in partitions.values())
        stretches = self._reader.since(topic, max(0, since_ms - _PUBLISHED_MARGIN_MS))
        for batch in self._reader.read(stretches):
            changes = {number: partition.state.begin() for number, partition in partitions.items()}
            for record in batch:
                try:
                    event = self._decode(record)
                except InvalidRecord:
                    continue  # nothing of ours
                number = self._reader.partition_of(self._job.inputs[0], event["trajectory_id"])
                if number in partitions:
                    partitions[number].fold.restore_published(event, changes[number])
            for number, partition in partitions.items():
                partition.state.write(changes[number], {}, partition.state.written_ms)

    def _replay(self, partitions: Mapping[int, Partition], late: Mapping[int, Behind]) -> None:
        log.info("rebuilding the state of %s: %s", self._job.name, dict(late))
        stretches = {(topic, number): s for number, behind in late.items() for topic, s in behind.items()}
        by_partition = attrgetter("partition")
        for batch in self._reader.read(stretches):
            for number, records in groupby(sorted(batch, key=by_partition), by_partition):
                self._fold_silently(partitions[number], list(records))
        for number, behind in late.items():
            state = partitions[number].state
            state.write(state.begin(), {topic: end for topic, (_, end) in behind.items()}, state.written_ms)

    def _fold_silently(self, partition: Partition, records: list[Record]) -> None:
        state = partition.state
        changes, out = state.begin(), self._outputs()
        out.silent = True
        self._fold_batch(partition, records, changes, out)
        reached = {record.topic: record.offset + 1 for record in records}
        state.write(changes, reached, state.written_ms)
        for record in records:
            metrics.REPLAYED.labels(record.topic).inc()
