"""Run a fold over the partitions of its input topics: state in RocksDB, outputs to Kafka, each input once in effect."""

import hashlib
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from stepstream.config import Settings
from stepstream.core.process import Fatal
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.dead_letter_limit import DeadLetterLimit
from stepstream.jobs.runtime.fetch import Fetch, GroupMember
from stepstream.jobs.runtime.fold import FoldJob, Partition
from stepstream.jobs.runtime.fold_batch import BatchFolder
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import InvalidRecord, Record, TopicPartition
from stepstream.jobs.runtime.recovery import Recovery
from stepstream.jobs.runtime.retry import retry_while
from stepstream.jobs.runtime.snapshot_store import SnapshotStore
from stepstream.jobs.runtime.snapshots import SnapshotRestorer, SnapshotWriter, snapshot_address
from stepstream.jobs.runtime.spans import BatchSpans, open_spans
from stepstream.jobs.runtime.state import Changes
from stepstream.jobs.runtime.ticks import Ticks
from stepstream.jobs.runtime.transaction import TransactionalPublisher, committed_offsets
from stepstream.topics.codec import CodecError, RegistryUnavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Batch:
    """One partition's part of a transaction. Nothing of it takes effect before the commit."""

    partition: Partition
    changes: Changes
    out: Outputs
    position: Mapping[str, int]
    """Next offset to fold, by input topic that advanced."""
    ticks: int


class FoldProcessor:
    """Processes the fetches of a fold job. All methods run in one thread."""

    def __init__(
        self,
        settings: Settings,
        job: FoldJob,
        cancelled: Callable[[], bool],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._job, self._now_ms = job, now_ms
        self._id = f"{job.name}@{job.version}"
        self._cancelled = cancelled
        self._codec = sealing_codec(settings, keep_arrays=True)
        source, transactional_id = f"{job.name}/{job.version}", transactional_id_of(settings, job.name)
        self._publisher = TransactionalPublisher(settings, self._codec, source, transactional_id, cancelled)
        self._spans = open_spans(settings, job.name)
        self._reader = LogReader(settings.kafka, consumer_group(job.name), cancelled)
        folder = state_folder(settings) / job.name
        self._batch_folder = BatchFolder(job, self._decode, self._outputs)
        self._ticks = Ticks(job, self._reader, self._outputs)
        self._closed = False
        snapshots = SnapshotStore(
            snapshot_address(settings),
            job.name,
            job.version,
            settings.jobs.snapshot_keep,
            lambda: self._closed,
            now_ms,
        )
        self._snapshots = SnapshotWriter(snapshots, folder, settings.jobs.snapshot_interval_s)
        self._recovery = Recovery(
            job,
            folder,
            self._reader,
            self._decode,
            self._batch_folder,
            SnapshotRestorer(snapshots, job, cancelled),
            accept_lost_history=settings.jobs.missing_history == "accept",
        )
        self._dead_letter_limit = DeadLetterLimit(settings.jobs.dead_letter_share)
        self._partitions: dict[int, Partition] = {}
        self._member: GroupMember | None = None

    def open(self, partitions: Iterable[int], member: GroupMember) -> None:
        """Open the state of assigned partitions, and rebuild it if needed. Commits name `member` from now on.

        What transactions of this worker's last process left open is ended first, since committed offsets are read next;
        and again while they cannot be read, since a broker that is killed in between may lose it.

        Raises:
            Refused, Cancelled, Fatal: as `process`.
        """

        def settle() -> None:
            self._publisher.settle(self._job.inputs[0], member)

        settle()
        self.close(list(self._partitions))
        self._partitions = {partition.number: partition for partition in self._recovery.open(partitions, settle)}
        for partition in self._partitions.values():
            self._snapshots.opened(partition)
        self._member = member

    def process(self, fetch: Fetch) -> None:
        """Fold a fetch, publish its results and commit its offsets together.

        1. Skip a fetch of another membership, and records that are already folded.
        2. Decode each record and apply the fold; a record that is invalid, or at which the fold raises twice, becomes
           a dead letter.
        3. End the batch of each fold, then check the share of dead letters.
        4. Commit the outputs and the offsets of all partitions in one transaction.
        5. Write the changes and the positions of each partition to its state.
        6. Apply the counts to the metrics.

        After a kill before step 4 has ended, nothing has happened. After it, `Recovery` folds the records again
        without publishing. If this raises, the partitions are closed: their folds hold changes that are not written.

        Raises:
            Refused: the partitions have, or will have, another owner; nothing took effect.
            Cancelled: the work was cancelled while a broker or the registry was unavailable; nothing took effect.
            Fatal: too many dead letters, or as `TransactionalPublisher.commit`.
        """
        if fetch.member != self._member:
            return
        with self._dropping_partitions():
            by_partition = attrgetter("partition")
            records = {n: list(rs) for n, rs in groupby(sorted(fetch.records, key=by_partition), by_partition)}
            batches = []
            for number in sorted({number for _, number in fetch.positions}):
                partition = self._partitions[number]
                position = _advance(partition, fetch)
                batches.append(self._fold_batch(partition, _unfolded(partition, records.get(number, [])), position))
            self._commit(batches)

    def _fold_batch(self, partition: Partition, records: list[Record], position: Mapping[str, int]) -> _Batch:
        changes, out = self._batch_folder.fold(partition, records)
        if out.dead_lettered.total():
            log.warning(
                "sent %d of %d records of partition %d to dead-letters",
                out.dead_lettered.total(),
                len(records),
                partition.number,
            )
        self._dead_letter_limit.add(out.received - out.dead_lettered, out.dead_lettered)
        return _Batch(partition, changes, out, position, partition.state.ticks)

    def _commit(self, batches: Sequence[_Batch]) -> None:
        """Take the effect of batches: first the transaction, then the states."""
        if not batches:
            return
        assert self._member is not None
        outputs = [output for batch in batches for output in batch.out.events]
        positions: dict[TopicPartition, int] = {}
        ticks = {}
        for batch in batches:
            first, number = self._job.inputs[0], batch.partition.number
            position = {first: batch.partition.state.position[first]} | dict(batch.position)
            positions |= {(topic, number): offset for topic, offset in position.items()}
            ticks[first, number] = str(batch.ticks)
        self._publisher.commit(outputs, committed_offsets(positions, ticks), self._member)
        now_ms = self._now_ms()
        for batch in batches:
            batch.partition.state.write(batch.changes, batch.position, now_ms, batch.ticks)
            batch.out.apply_counts()

    @contextmanager
    def _dropping_partitions(self) -> Iterator[None]:
        """Close all partitions if the body raises: their folds may hold changes that did not take effect."""
        try:
            yield
        except BaseException:
            self._member = None
            self.close(list(self._partitions))
            raise

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
        spans = None if self._spans is None else BatchSpans(self._spans)
        return Outputs(self._id, self._codec, self._retry, spans)

    def _retry(self, call: Callable[[], Any]) -> Any:
        return retry_while(call, RegistryUnavailable, self._cancelled)

    def tick(self) -> None:
        """Let folds take their decisions in time, in partitions whose inputs are folded up to that time.

        A tick at which the fold raises is tried again later. Then begin a snapshot that is due.

        Raises:
            Refused, Cancelled, Fatal: as `process`.
        """
        if self._member is None:
            return
        now_ms = self._now_ms()
        with self._dropping_partitions():
            batches = []
            for tick in self._ticks.run(self._partitions.values(), now_ms):
                if tick.out.events:
                    ticks = tick.partition.state.ticks + 1
                    batches.append(_Batch(tick.partition, tick.changes, tick.out, {}, ticks))
                else:
                    tick.partition.state.write(tick.changes, {}, now_ms)
                    tick.out.apply_counts()
            self._commit(batches)
        metrics.STATE_ENTRIES.set(sum(partition.state.entries() for partition in self._partitions.values()))
        self._snapshots.take_due(self._partitions)

    def close(self, partitions: Iterable[int]) -> None:
        """Release revoked partitions; ignore unknown ones."""
        for number in partitions:
            partition = self._partitions.pop(number, None)
            if partition is not None:
                partition.state.close()

    def shut_down(self) -> None:
        """Release all partitions and connections."""
        self._closed = True
        self._snapshots.close()
        self.close(list(self._partitions))
        self._reader.close()
        self._codec.close()
        if self._spans is not None:
            self._spans.close()


def consumer_group(job: str) -> str:
    """Return the consumer group of a job."""
    return f"stepstream-{job}"


def state_folder(settings: Settings) -> Path:
    """Return the folder of all jobs' state in this worker."""
    folder = settings.jobs.state or settings.paths.data / "state"
    return folder if settings.jobs.instance == 1 else folder / f"worker-{settings.jobs.instance}"


def transactional_id_of(settings: Settings, job: str) -> str:
    """Return the transactional id of this worker: a process that starts with it ends what the one before left."""
    return f"stepstream-{worker_instance(settings, job)}"


def worker_instance(settings: Settings, job: str) -> str:
    """Return a permanent id of this worker: job, host and state folder, which one process at a time can use."""
    location = f"{socket.gethostname()}:{state_folder(settings).resolve()}"
    return f"{job}-{hashlib.sha256(location.encode()).hexdigest()[:16]}"


def _advance(partition: Partition, fetch: Fetch) -> dict[str, int]:
    """Return the positions after a fetch, by input topic that advances.

    Raises:
        Fatal: records between the partition's position and the fetch are missing.
    """
    advanced = {}
    for (topic, number), (begin, end) in fetch.positions.items():
        if number != partition.number:
            continue
        position = partition.state.position[topic]
        if begin > position:
            raise Fatal(
                f"the records of {topic}[{number}] from offset {position} to {begin} were not delivered: restart this "
                "process, which reads them"
            )
        if end > position:
            advanced[topic] = end
    return advanced


def _unfolded(partition: Partition, records: list[Record]) -> list[Record]:
    """Return the records at the partition's position or after it."""
    position = partition.state.position
    unfolded = [record for record in records if record.offset >= position[record.topic]]
    for record in records:
        if record.offset < position[record.topic]:
            metrics.REDELIVERED.labels(record.topic).inc()
    return unfolded
