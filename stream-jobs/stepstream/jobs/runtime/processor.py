"""Run a fold over the partitions of its input topics: state in RocksDB, outputs to Kafka, each input once in effect."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.dead_letter_limit import DeadLetterLimit
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
    """Processes the batches of a fold job. All methods run in one thread."""

    def __init__(self, settings: Settings, job: FoldJob, cancelled: Callable[[], bool]) -> None:
        self._job = job
        self._id = f"{job.name}@{job.version}"
        self._cancelled = cancelled
        self._codec = sealing_codec(settings)
        self._publisher = Publisher(settings, self._codec, f"{job.name}/{job.version}", cancelled)
        self._reader = LogReader(settings.kafka, consumer_group(job.name), cancelled)
        folder = state_folder(settings) / job.name
        self._recovery = Recovery(job, folder, self._reader, self._decode, self._fold, self._outputs)
        self._dead_letter_limit = DeadLetterLimit(settings.jobs.dead_letter_share)
        self._partitions: dict[int, Partition] = {}

    def process(self, records: Sequence[Record]) -> None:
        """Fold a batch and publish its results; when this returns, the batch's offsets may be committed.

        1. For each partition of the batch: open its state; `Recovery` rebuilds state that is missing or behind.
        2. Skip records that are already folded; read records that Faust did not deliver.
        3. Decode each record and apply the fold; an invalid record becomes a dead letter.
        4. End the batch of the fold, then check the share of dead letters.
        5. Write the state, the input offsets and the outputs (as outbox) in one atomic batch.
        6. Publish the outputs of all partitions, wait for the acknowledgements, and clear the outboxes.
        7. Apply the counts to the metrics.

        After a kill, Kafka delivers the batch again. Before step 5, nothing has happened. After it, step 1 publishes
        the outbox again with the same ids and bytes, and step 2 skips the records.

        Raises:
            Cancelled: the work was cancelled while a broker or the registry was unavailable; commit nothing.
            Fatal: too many dead letters.
        """
        by_partition = attrgetter("partition")
        folded = []
        for number, batch in groupby(sorted(records, key=by_partition), by_partition):
            self.open([number])
            partition = self._partitions[number]
            fresh = self._contiguous(partition, list(batch))
            if fresh:
                folded.append((partition, self._fold_and_write(partition, fresh)))
        self._publish(folded)

    def open(self, partitions: Iterable[int]) -> None:
        """Open the state of partitions, rebuild it if needed, and publish the events of their outboxes."""
        missing = [number for number in partitions if number not in self._partitions]
        if not missing:
            return
        for partition in self._recovery.open(missing):
            self._partitions[partition.number] = partition
            outbox = partition.state.outbox()
            if outbox is not None:
                self._publisher.publish(unpack(outbox))
                partition.state.clear_outbox()

    def _contiguous(self, partition: Partition, records: list[Record]) -> list[Record]:
        """Return the records from the partition's position on: drop folded ones, read missing ones."""
        position = dict(partition.state.position)
        fresh: list[Record] = []
        for record in records:
            expected = position[record.topic]
            if record.offset < expected:
                metrics.REDELIVERED.labels(record.topic).inc()
                continue
            # One offset without a record is a transaction marker. A longer gap, or any gap before the first record
            # that is delivered, may hide a record that was lost in a rebalance.
            is_first = record.topic not in partition.delivered_topics
            if record.offset > expected + 1 or (record.offset > expected and is_first):
                fresh += self._missing(record, expected)
            partition.delivered_topics.add(record.topic)
            fresh.append(record)
            position[record.topic] = record.offset + 1
        return fresh

    def _missing(self, record: Record, expected: int) -> list[Record]:
        offsets = {(record.topic, record.partition): (expected, record.offset)}
        missing = [each for batch in self._reader.read(offsets) for each in batch]
        if missing:
            log.info("read %d records before %s[%d]@%d", len(missing), record.topic, record.partition, record.offset)
        return missing

    def _fold_and_write(self, partition: Partition, records: Sequence[Record]) -> Outputs:
        changes, out = partition.state.begin(), self._outputs()
        self._fold(partition, records, changes, out)
        if out.dead_lettered.total():
            log.warning(
                "sent %d of %d records of partition %d to dead-letters",
                out.dead_lettered.total(),
                len(records),
                partition.number,
            )
        self._dead_letter_limit.add(out.received - out.dead_lettered, out.dead_lettered)
        position = {record.topic: record.offset + 1 for record in records}
        partition.state.write(changes, position, time.time_ns() // 1_000_000, pack(out.events))
        return out

    def _fold(self, partition: Partition, records: Sequence[Record], changes: Changes, out: Outputs) -> None:
        fold = partition.fold
        for record in records:
            tenant = ""
            try:
                event = self._decode(record)
                tenant = event.get("tenant") or ""
                fold.apply(record, event, changes, out)
            except InvalidRecord as invalid:
                tenant = invalid.tenant = invalid.tenant or tenant
                out.dead_letter(record, invalid)
            out.received[tenant] += 1
        fold.end_batch(changes, out)

    def _decode(self, record: Record) -> dict[str, Any]:
        limit = self._job.max_event_bytes
        if limit is not None and record.value is not None and len(record.value) > limit:
            raise InvalidRecord("oversized", f"{len(record.value)} bytes exceed the limit of {limit}")
        try:
            event: dict[str, Any] = self._retry(lambda: self._codec.decode(record.topic, record.value))
        except CodecError as error:
            raise InvalidRecord(error.kind, str(error)) from error
        return event

    def _outputs(self) -> Outputs:
        return Outputs(self._id, self._codec, self._retry)

    def _retry(self, call: Callable[[], Any]) -> Any:
        return retry_while(call, RegistryUnavailable, self._cancelled)

    def _publish(self, folded: Sequence[tuple[Partition, Outputs]]) -> None:
        """Publish the outputs of all partitions together, in one round trip to the brokers."""
        outputs = [output for _, out in folded for output in out.events]
        if outputs:
            self._publisher.publish(outputs)
        for partition, out in folded:
            if out.events:
                partition.state.clear_outbox()
            out.apply_counts()

    def tick(self) -> None:
        """Let folds take their decisions in time, in partitions whose inputs are folded up to that time."""
        now_ms = time.time_ns() // 1_000_000
        folded = []
        for partition in self._partitions.values():
            tick_ms = self._tick_time(partition, now_ms)
            if tick_ms is not None:
                changes, out = partition.state.begin(), self._outputs()
                partition.fold.tick(tick_ms, changes, out)
                partition.state.write(changes, {}, now_ms, pack(out.events))
                folded.append((partition, out))
        self._publish(folded)

    def _tick_time(self, partition: Partition, now_ms: int) -> int | None:
        """Return a time at which the fold has decisions to take and before which every record is folded; None: not yet.

        A timeout needs proof that no record came. After a standstill, the backlog must be folded first.
        """
        if partition.pending_tick is None:
            if not partition.fold.due(now_ms):
                return None
            ends = {topic: self._reader.bounds(topic, partition.number)[1] for topic in self._job.inputs}
            partition.pending_tick = now_ms, ends
        tick_ms, ends = partition.pending_tick
        if any(partition.state.position[topic] < end for topic, end in ends.items()):
            return None
        partition.pending_tick = None
        return tick_ms

    def close(self, partitions: Iterable[int]) -> None:
        """Release revoked partitions; ignore unknown ones."""
        for number in partitions:
            partition = self._partitions.pop(number, None)
            if partition is not None:
                partition.state.close()

    def shut_down(self) -> None:
        """Release all partitions and connections."""
        self.close(list(self._partitions))
        self._reader.close()
        self._codec.close()


def consumer_group(job: str) -> str:
    """Return the consumer group of a job."""
    return f"stepstream-{job}"


def state_folder(settings: Settings) -> Path:
    """Return the folder of all jobs' state."""
    return settings.jobs.state or settings.paths.data / "state"
