"""Runs a fold over the partitions of its input topics: state in RocksDB, outputs to Kafka, each input once in effect.

A batch goes: decode, fold, write the state with the input offsets and the outputs, publish the outputs, commit. A
kill at any point is made good at the next start: outputs in the store's outbox are published again (same ids, same
bytes), records at offsets that were folded are passed over. What `recovery.py` does comes before all of it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from stepstream.config import Settings
from stepstream.crypto.key_ring import codec_of
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.dead_letter_limit import DeadLetterShare
from stepstream.jobs.runtime.fold import FoldJob, Partition
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.outputs import Outputs, Publisher, pack, unpack
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.recovery import Recovery
from stepstream.jobs.runtime.retry import retry_while
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.codec import CodecError, RegistryUnavailable

log = logging.getLogger(__name__)


class FoldProcessor:
    """Works off batches of a fold job. All methods run in one thread."""

    def __init__(self, settings: Settings, job: FoldJob, cancelled: Callable[[], bool]) -> None:
        self._job = job
        self._id = f"{job.name}@{job.version}"
        self._cancelled = cancelled
        self._codec = codec_of(settings)
        self._publisher = Publisher(settings, self._codec, f"{job.name}/{job.version}", cancelled)
        self._reader = LogReader(settings.kafka, group(job.name), cancelled)
        folder = state_folder(settings) / job.name
        self._recovery = Recovery(job, folder, self._reader, self._decode, self._fold, self._outputs)
        self._share = DeadLetterShare(settings.jobs.dead_letter_share)
        self._partitions: dict[int, Partition] = {}

    def open(self, partitions: Iterable[int]) -> None:
        """Opens, and where needed rebuilds, the state of partitions; publishes what an outbox still holds."""
        self._open(partitions)

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
        self._codec.close()

    def process(self, records: Sequence[Record]) -> None:
        """Folds a batch and publishes what follows; when it returns, the batch's offsets may be committed.

        Raises:
            Abandoned: asked to give up while a broker or the registry was away; nothing may be committed.
            Fatal: too many dead letters.
        """
        by_partition = attrgetter("partition")
        taken = []
        for number, batch in groupby(sorted(records, key=by_partition), by_partition):
            self._open([number])
            partition = self._partitions[number]
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

    def _take(self, partition: Partition, records: Sequence[Record]) -> Outputs:
        changes, out = partition.state.begin(), self._outputs()
        self._fold(partition, records, changes, out)
        if out.refused.total():
            log.warning(
                "%d of %d records of partition %d go to dead-letters",
                out.refused.total(),
                len(records),
                partition.number,
            )
        self._share.note(out.came - out.refused, out.refused)
        reached = {record.topic: record.offset + 1 for record in records}
        partition.state.write(changes, reached, time.time_ns() // 1_000_000, pack(out.events))
        return out

    def _publish(self, taken: Sequence[tuple[Partition, Outputs]]) -> None:
        """Publishes what partitions gave, all at once: one round trip to the brokers."""
        outputs = [output for _, out in taken for output in out.events]
        if outputs:
            self._publisher.publish(outputs)
        for partition, out in taken:
            if out.events:
                partition.state.clear_outbox()
            out.show_counts()

    def _fold(self, partition: Partition, records: Sequence[Record], changes: Changes, out: Outputs) -> None:
        fold = partition.fold
        for record in records:
            tenant = ""
            try:
                event = self._decode(record)
                tenant = event.get("tenant") or ""
                fold.apply(record, event, changes, out)
            except InvalidRecord as refused:
                tenant = refused.tenant = refused.tenant or tenant
                out.dead_letter(record, refused)
            out.came[tenant] += 1
        fold.end_batch(changes, out)

    def _decode(self, record: Record) -> dict[str, Any]:
        limit = self._job.max_event_bytes
        if limit is not None and record.value is not None and len(record.value) > limit:
            raise InvalidRecord("oversized", f"{len(record.value)} bytes, more than {limit}")
        try:
            event: dict[str, Any] = self._wait_for_registry(lambda: self._codec.decode(record.topic, record.value))
        except CodecError as error:
            raise InvalidRecord(error.kind, str(error)) from error
        return event

    def _outputs(self) -> Outputs:
        return Outputs(self._id, self._codec, self._wait_for_registry)

    def _wait_for_registry(self, call: Callable[[], Any]) -> Any:
        return retry_while(call, RegistryUnavailable, self._cancelled)

    def _contiguous(self, partition: Partition, records: list[Record]) -> list[Record]:
        """The records that follow on the partition's position: without folded ones, with missing ones read."""
        position = dict(partition.state.position)
        fresh: list[Record] = []
        for record in records:
            expected = position[record.topic]
            if record.offset < expected:
                metrics.REDELIVERED.labels(record.topic).inc()
                continue
            # A single offset without a record is the mark of somebody's transaction. Anything else would be a record
            # that got lost while partitions changed hands, as would be one before the first that is delivered.
            if record.offset > expected + 1 or (record.offset > expected and record.topic not in partition.joined):
                fresh += self._missing(record, expected)
            partition.joined.add(record.topic)
            fresh.append(record)
            position[record.topic] = record.offset + 1
        return fresh

    def _missing(self, record: Record, expected: int) -> list[Record]:
        stretch = {(record.topic, record.partition): (expected, record.offset)}
        found = [missed for batch in self._reader.read(stretch) for missed in batch]
        if found:
            log.info("read %d records before %s[%d]@%d", len(found), record.topic, record.partition, record.offset)
        return found

    def _known_until(self, partition: Partition, now_ms: int) -> int | None:
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

    def _open(self, numbers: Iterable[int]) -> None:
        missing = [number for number in numbers if number not in self._partitions]
        if not missing:
            return
        for partition in self._recovery.open(missing):
            self._partitions[partition.number] = partition
            outbox = partition.state.outbox()
            if outbox is not None:
                self._publisher.publish(unpack(outbox))
                partition.state.clear_outbox()


def group(job: str) -> str:
    """The consumer group of a job."""
    return f"stepstream-{job}"


def state_folder(settings: Settings) -> Path:
    """Where the jobs keep their state."""
    return settings.jobs.state or settings.paths.data / "state"
