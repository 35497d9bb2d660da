"""Bring the state of partitions up to the group's committed offsets, with the input topics as change log.

State that is up to date is only opened. State that is missing (new machine, deleted folder) or far behind (another
worker held the partition) is replaced by the newest snapshot that is not ahead of the committed offsets. Then
`Recovery` folds the input from the state's position on. It publishes nothing, because the results were published
together with the committed offsets. State is never ahead of them, unless an earlier release wrote it or an operator
reset the offsets; then it is discarded.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from stepstream.core.process import Fatal
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.fold import FoldJob, Partition
from stepstream.jobs.runtime.fold_batch import FAILED, BatchFolder, Position
from stepstream.jobs.runtime.fold_errors import build_fold
from stepstream.jobs.runtime.log_reader import Committed, LogReader
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.snapshots import SnapshotRestorer
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.catalogue import DEAD_LETTERS

log = logging.getLogger(__name__)

_CLOCK_SKEW_MS = 600_000
"""Allowed difference between the clocks of workers and brokers."""
WORTH_A_SNAPSHOT = 10_000
"""Offsets by which a snapshot must be ahead of a usable state to replace it: seconds of folding."""

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
        batch_folder: BatchFolder,
        snapshots: SnapshotRestorer,
        *,
        accept_lost_history: bool = False,
    ) -> None:
        """Use the given parts; `accept_lost_history` goes on where the log and the snapshots lack records."""
        self._job, self._folder, self._reader = job, folder, reader
        self._decode, self._batch_folder, self._snapshots = decode, batch_folder, snapshots
        self._accept_lost_history = accept_lost_history

    def open(self, numbers: Iterable[int], settle: Callable[[], None]) -> list[Partition]:
        """Open partitions with their state at the committed offsets; rebuild where needed. `settle` as in `LogReader`.

        Raises:
            Cancelled: the work was cancelled while waiting for a broker or the registry.
            Fatal: another process holds a state folder, a fold cannot read its state, or the log has deleted records
                that a state needs.
        """
        numbers = sorted(numbers)
        states = []
        try:
            identity = self._reader.identity(self._job.inputs)
            committed = self._reader.committed(self._job.inputs, numbers, settle)
            behind: dict[int, MissingOffsets] = {}
            partitions, committed_ticks = {}, {}
            for number in numbers:
                state = PartitionState(self._folder / str(number))
                states.append(state)
                of_partition = {topic: committed[topic, number] for topic, n in committed if n == number}
                missing, committed_ticks[number] = self._synchronize(number, state, identity, of_partition)
                partitions[number] = Partition(number, state, build_fold(self._job, number, state))
                if missing or committed_ticks[number] != state.ticks:
                    behind[number] = missing
                    partitions[number].rebuilt = _count(missing) >= WORTH_A_SNAPSHOT
            if behind:
                self._restore_published({number: partitions[number] for number in behind})
                self._replay(partitions, behind)
            for number in behind:  # last: until then, another start repeats all of it
                state = partitions[number].state
                state.write(state.begin(), {}, state.written_ms, committed_ticks[number])
        except BaseException:
            for state in states:
                state.close()
            raise
        return list(partitions.values())

    def _synchronize(
        self, number: int, state: PartitionState, identity: str, committed: Mapping[str, Committed]
    ) -> tuple[MissingOffsets, int]:
        """Discard state that cannot be used, restore a snapshot if that saves work, and set missing positions.

        Returns:
            The offsets that the state lacks, and the number of committed ticks.
        """
        bounds = {topic: self._reader.bounds(topic, number) for topic in self._job.inputs}
        if fault := _fault(state, identity, {topic: high for topic, (_, high) in bounds.items()}, committed):
            if state.identity:
                log.warning("rebuilding the state of %s partition %d: %s", self._job.name, number, fault)
            state.reset(identity)
        first = committed.get(self._job.inputs[0])
        ticks = int(first.metadata) if first is not None and first.metadata.isdecimal() else 0
        lows = {topic: low for topic, (low, _) in bounds.items()}
        self._restore_snapshot(number, state, lows, committed, ticks if first is not None else None)
        self._check_history(number, state, lows, committed)
        position = {topic: max(low, state.position.get(topic, low)) for topic, low in lows.items()}
        if state.position != position:
            state.write(state.begin(), position, state.written_ms)
        missing = {
            topic: (position[topic], entry.offset)
            for topic, entry in committed.items()
            if entry.offset > position[topic]
        }
        return missing, ticks

    def _restore_snapshot(
        self,
        number: int,
        state: PartitionState,
        lows: Mapping[str, int],
        committed: Mapping[str, Committed],
        ticks: int | None,
    ) -> None:
        """Replace a state by the newest usable snapshot, if it lacks much or what the log no longer has."""
        lacking = {topic: (state.position.get(topic, 0), entry.offset) for topic, entry in committed.items()}
        is_cut = any(low > state.position.get(topic, 0) for topic, low in lows.items())
        is_new = not state.position
        if not _count(lacking) or not (is_new or is_cut or _count(lacking) >= WORTH_A_SNAPSHOT):
            return
        worth = 1 if is_new or is_cut else WORTH_A_SNAPSHOT
        found = self._snapshots.find(state.identity, number, committed, ticks)
        self._snapshots.restore([one for one in found if one.records_after(state.position) >= worth], state)

    def _check_history(
        self, number: int, state: PartitionState, lows: Mapping[str, int], committed: Mapping[str, Committed]
    ) -> None:
        """Check that the log still has what the state lacks.

        Raises:
            Fatal: it does not, and the loss is not accepted.
        """
        for topic, low in lows.items():
            if topic not in state.position and topic not in committed:
                continue  # the job reads this topic for the first time
            position = state.position.get(topic, 0)
            if low <= position:
                continue
            fact = (
                f"the state of {self._job.name} partition {number} is at offset {position} of {topic}, but the log "
                f"begins at {low}, and no snapshot covers the {low - position} offsets between"
            )
            if not self._accept_lost_history:
                raise Fatal(
                    f"{fact}: bring back the state folder or its snapshots, or go on without these records with "
                    "STEPSTREAM_JOBS_MISSING_HISTORY=accept"
                )
            log.error("%s: going on without them", fact)
            metrics.HISTORY_LOST.labels(topic).inc(low - position)

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
        skipped = self._set_aside(min(partitions[number].state.written_ms for number in missing))
        by_partition = attrgetter("partition")
        for batch in self._reader.read(offsets):
            for number, records in groupby(sorted(batch, key=by_partition), by_partition):
                self._fold_without_publishing(partitions[number], list(records), skipped)
        for number, by_topic in missing.items():
            state = partitions[number].state
            state.write(state.begin(), {topic: end for topic, (_, end) in by_topic.items()}, state.written_ms)

    def _set_aside(self, since_ms: int) -> Set[Position]:
        """Return the records at which this job's fold raised: a mended fold must not take them in before a redrive."""
        positions = set()
        for batch in self._reader.read(self._reader.since(DEAD_LETTERS, max(0, since_ms - _CLOCK_SKEW_MS))):
            for record in batch:
                try:
                    letter = self._decode(record)
                except InvalidRecord:
                    continue
                if letter["error"] == FAILED and letter["job"].partition("@")[0] == self._job.name:
                    positions.add((letter["topic"], letter["partition"], letter["offset"]))
        return positions

    def _fold_without_publishing(self, partition: Partition, records: list[Record], skipped: Set[Position]) -> None:
        state = partition.state
        changes, _ = self._batch_folder.fold(partition, records, replaying=True, skipped=skipped)
        position = {record.topic: record.offset + 1 for record in records}
        state.write(changes, position, state.written_ms)
        for record in records:
            metrics.REPLAYED.labels(record.topic).inc()


def _count(missing: MissingOffsets) -> int:
    return sum(max(0, end - begin) for begin, end in missing.values())


def _fault(
    state: PartitionState, identity: str, ends: Mapping[str, int], committed: Mapping[str, Committed]
) -> str | None:
    """Return the reason why state cannot be used; None: it can."""
    if state.identity != identity or any(state.position.get(topic, 0) > end for topic, end in ends.items()):
        return "it is of another log"
    for topic, next_offset in state.position.items():
        entry = committed.get(topic)
        if entry is not None and next_offset > entry.offset:
            return f"it is ahead of the committed offset {entry.offset} of {topic}"
        if entry is None and state.has_outbox:
            return "an earlier release left outputs in it that it may not have published"
    return None
