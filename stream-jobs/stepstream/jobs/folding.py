"""Runs a fold over the partitions of its input topics: state in RocksDB, outputs to Kafka, each input once in effect.

A batch goes: decode, fold, write the state with the input offsets and the outputs, publish the outputs, commit. A
kill at any point is made good at the next start: outputs in the store's outbox are published again (same ids, same
bytes), records at offsets that were folded are passed over. Where the store is missing or behind the committed
offsets, the input is folded again without publishing: the input topics are the change log.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Protocol

from stepstream.config import Settings
from stepstream.jobs import metrics
from stepstream.jobs.limits import DeadLetterShare
from stepstream.jobs.log_reader import LogReader
from stepstream.jobs.outputs import Outputs, Refused, pack, unpack
from stepstream.jobs.publisher import Publisher
from stepstream.jobs.record import Record
from stepstream.jobs.state import Changes, PartitionState
from stepstream.jobs.waiting import patiently
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable

log = logging.getLogger(__name__)

_PUBLISHED_MARGIN_MS = 600_000
"""How long before its last write a state may have missed what was published: clocks differ."""


class Fold(Protocol):
    """What a job does with the records of one partition. No Kafka and no clock: both are passed in."""

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Folds one event. Raises `Refused` where it cannot be used; must not raise anything else."""
        ...

    def settle(self, changes: Changes, out: Outputs) -> None:
        """Ends a batch: emits what follows from all of it."""
        ...

    def due(self, now_ms: int) -> bool:
        """Whether `tick` has something to do at this time."""
        ...

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Takes decisions in time: as of `now_ms`, before which every record is folded."""
        ...

    def published(self, event: dict[str, Any], changes: Changes) -> None:
        """Learns, while state is rebuilt, of an event that was published before."""
        ...


class FoldJob(Protocol):
    """A job made of folds."""

    name: ClassVar[str]
    version: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    remembers: ClassVar[str | None]
    """Output topic that `Fold.published` wants to see when state is rebuilt; None: it does not need to."""

    @property
    def max_event_bytes(self) -> int | None:
        """Largest record that is decoded at all; None: any that Kafka takes."""
        ...

    def fold(self, state: PartitionState) -> Fold:
        """The fold of one partition, over its store."""
        ...


class _Partition:
    def __init__(self, number: int, state: PartitionState, fold: Fold) -> None:
        self.number = number
        self.state = state
        self.fold = fold
        self.horizon: tuple[int, dict[str, int]] | None = None
        """A time, and where the inputs ended then."""


class FoldProcessor:
    """Works off batches of a fold job. All methods run in one thread."""

    def __init__(self, settings: Settings, job: FoldJob, abandoned: Callable[[], bool]) -> None:
        self._job = job
        self._id = f"{job.name}@{job.version}"
        self._abandoned = abandoned
        self._codec = Codec(settings.schema_registry)
        self._publisher = Publisher(settings, self._codec, f"{job.name}/{job.version}", abandoned)
        self._reader = LogReader(settings.kafka, group(job.name), abandoned)
        self._folder = state_folder(settings) / job.name
        self._share = DeadLetterShare(settings.jobs.dead_letter_share)
        self._partitions: dict[int, _Partition] = {}

    def open(self, partitions: Iterable[int]) -> None:
        """Opens, and where needed rebuilds, the state of partitions."""
        for partition in sorted(partitions):
            self._open(partition)

    def close(self, partitions: Iterable[int]) -> None:
        """Releases partitions that were taken away; unknown ones are passed over."""
        for number in partitions:
            partition = self._partitions.pop(number, None)
            if partition is not None:
                partition.state.close()

    def shut_down(self) -> None:
        """Releases everything."""
        self.close(list(self._partitions))
        self._reader.close()

    def process(self, records: Sequence[Record]) -> None:
        """Folds a batch and publishes what follows; when it returns, the batch's offsets may be committed.

        Raises:
            Abandoned: asked to give up while a broker or the registry was away; nothing may be committed.
            Fatal: too many dead letters.
        """
        by_partition = attrgetter("partition")
        taken = []
        for number, batch in groupby(sorted(records, key=by_partition), by_partition):
            partition = self._open(number)
            fresh = self._contiguous(partition, list(batch))
            if fresh:
                taken.append((partition, self._take(partition, fresh)))
        self._publish(taken)

    def tick(self) -> None:
        """Lets folds take decisions in time, where they have folded all that there is."""
        now_ms = time.time_ns() // 1_000_000
        taken = []
        for partition in self._partitions.values():
            as_of_ms = self._known_until(partition, now_ms)
            if as_of_ms is not None:
                changes, out = partition.state.begin(), self._outputs()
                partition.fold.tick(as_of_ms, changes, out)
                partition.state.write(changes, {}, now_ms, pack(out.events))
                taken.append((partition, out))
        self._publish(taken)

    def _take(self, partition: _Partition, records: Sequence[Record]) -> Outputs:
        changes, out = partition.state.begin(), self._outputs()
        self._fold(partition, records, changes, out)
        if out.refused:
            log.warning(
                "%d of %d records of partition %d go to dead-letters", out.refused, len(records), partition.number
            )
        self._share.note(len(records) - out.refused, out.refused)
        reached = {record.topic: record.offset + 1 for record in records}
        partition.state.write(changes, reached, time.time_ns() // 1_000_000, pack(out.events))
        return out

    def _publish(self, taken: Sequence[tuple[_Partition, Outputs]]) -> None:
        """Publishes what partitions gave, all at once: one round trip to the brokers."""
        outputs = [output for _, out in taken for output in out.events]
        if outputs:
            self._publisher.publish(outputs)
        for partition, out in taken:
            if out.events:
                partition.state.clear_outbox()
            out.show_counts()

    def _fold(self, partition: _Partition, records: Sequence[Record], changes: Changes, out: Outputs) -> None:
        fold = partition.fold
        for record in records:
            try:
                fold.apply(record, self._decode(record), changes, out)
            except Refused as refused:
                out.refuse(record, refused)
        fold.settle(changes, out)

    def _decode(self, record: Record) -> dict[str, Any]:
        limit = self._job.max_event_bytes
        if limit is not None and record.value is not None and len(record.value) > limit:
            raise Refused("oversized", f"{len(record.value)} bytes, more than {limit}")
        try:
            event: dict[str, Any] = self._wait_for_registry(lambda: self._codec.decode(record.topic, record.value))
        except CodecError as error:
            raise Refused(error.kind, str(error)) from error
        return event

    def _outputs(self) -> Outputs:
        return Outputs(self._id, self._codec, self._wait_for_registry)

    def _wait_for_registry(self, call: Callable[[], Any]) -> Any:
        return patiently(call, RegistryUnavailable, self._abandoned)

    def _contiguous(self, partition: _Partition, records: list[Record]) -> list[Record]:
        """The records that follow on the partition's position: without folded ones, with missing ones read."""
        position = dict(partition.state.position)
        fresh: list[Record] = []
        for record in records:
            expected = position[record.topic]
            if record.offset < expected:
                metrics.REDELIVERED.labels(record.topic).inc()
                continue
            if record.offset > expected:
                fresh += self._missing(record, expected)
            fresh.append(record)
            position[record.topic] = record.offset + 1
        return fresh

    def _missing(self, record: Record, expected: int) -> list[Record]:
        stretch = {(record.topic, record.partition): (expected, record.offset)}
        found = [missed for batch in self._reader.read(stretch) for missed in batch]
        if found:
            log.info("read %d records before %s[%d]@%d", len(found), record.topic, record.partition, record.offset)
        return found

    def _known_until(self, partition: _Partition, now_ms: int) -> int | None:
        """A time at which the fold has something to decide and before which every record is folded; None: not yet.

        Silence is known only up to there: after a standstill, what came meanwhile has to be read first.
        """
        if partition.horizon is None:
            if not partition.fold.due(now_ms):
                return None
            ends = {topic: self._reader.bounds(topic, partition.number)[1] for topic in self._job.inputs}
            partition.horizon = now_ms, ends
        as_of_ms, ends = partition.horizon
        if any(partition.state.position[topic] < end for topic, end in ends.items()):
            return None
        partition.horizon = None
        return as_of_ms

    def _open(self, number: int) -> _Partition:
        if number not in self._partitions:
            state = PartitionState(self._folder / str(number))
            try:
                self._partitions[number] = self._recover(number, state)
            except BaseException:
                state.close()
                raise
        return self._partitions[number]

    def _recover(self, number: int, state: PartitionState) -> _Partition:
        inputs = self._job.inputs
        identity = self._reader.identity(inputs)
        bounds = {topic: self._reader.bounds(topic, number) for topic in inputs}
        ahead = any(state.position.get(topic, 0) > high for topic, (_, high) in bounds.items())
        if state.identity != identity or ahead:
            if state.identity:
                log.warning("state of %s partition %d belongs to another log: building it anew", self._job.name, number)
            state.reset(identity)
        partition = _Partition(number, state, self._job.fold(state))
        known = {topic: state.position.get(topic, low) for topic, (low, _) in bounds.items()}
        if state.position != known:
            state.write(state.begin(), known, state.written_ms)
        committed = self._reader.committed(inputs, number)
        behind = {topic: (known[topic], committed[topic]) for topic in committed if committed[topic] > known[topic]}
        if behind:
            self._replay(partition, behind)
        outbox = state.outbox()
        if outbox is not None:
            self._publisher.publish(unpack(outbox))
            state.clear_outbox()
        return partition

    def _replay(self, partition: _Partition, behind: Mapping[str, tuple[int, int]]) -> None:
        log.info("rebuilding the state of %s partition %d: %s", self._job.name, partition.number, dict(behind))
        since_ms = partition.state.written_ms and partition.state.written_ms - _PUBLISHED_MARGIN_MS
        state = partition.state
        remembers, inputs = self._job.remembers, self._job.inputs
        if remembers is not None:
            changes = state.begin()
            for batch in self._reader.read(self._reader.since(remembers, since_ms)):
                for record in batch:
                    event = self._decode(record)
                    if self._reader.partition_of(inputs[0], event["trajectory_id"]) == partition.number:
                        partition.fold.published(event, changes)
            state.write(changes, {}, state.written_ms)
        for batch in self._reader.read({(t, partition.number): stretch for t, stretch in behind.items()}):
            changes = state.begin()
            self._fold(partition, batch, changes, self._outputs())
            reached = {record.topic: record.offset + 1 for record in batch}
            state.write(changes, reached, state.written_ms)
            for record in batch:
                metrics.REPLAYED.labels(record.topic).inc()
        state.write(state.begin(), {t: end for t, (_, end) in behind.items()}, state.written_ms)


def group(job: str) -> str:
    """The consumer group of a job."""
    return f"stepstream-{job}"


def state_folder(settings: Settings) -> Path:
    """Where the jobs keep their state."""
    return settings.jobs.state or settings.paths.data / "state"
