"""Model a log, a consumer group and its workers: transactions, owners and crashes.

The workers are real: `FoldProcessor` with a real fold and RocksDB. Only the broker and its clients are models. A
worker may be killed or paused at each of its calls to the broker. While it is paused, another one may own its
partitions.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Offset
from fold_harness import LocalCodec

from stepstream.config import JobsSettings, Settings
from stepstream.core.object_store import write_file
from stepstream.core.process import Fatal
from stepstream.jobs.runtime import processor, snapshot_store
from stepstream.jobs.runtime.fetch import Fetch, GroupMember
from stepstream.jobs.runtime.fold import FoldJob
from stepstream.jobs.runtime.log_reader import Committed
from stepstream.jobs.runtime.outputs import Output
from stepstream.jobs.runtime.processor import FoldProcessor
from stepstream.jobs.runtime.record import Record, TopicPartition
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.jobs.runtime.snapshot_store import SnapshotStore
from stepstream.jobs.runtime.snapshots import SnapshotWriter
from stepstream.jobs.runtime.transaction import Refused

T0_MS = 1_760_000_100_000
"""Time at which a log begins."""
DAY_MS = 86_400_000
"""Longer than the default deadlines."""
INTERVAL_S = 600.0
"""Seconds between two snapshots."""
CODEC = LocalCodec()


class Killed(Exception):
    """The process was killed."""


@lru_cache(10_000)
def _decoded(topic: str, value: bytes) -> Any:
    """Return the event; most schedules publish the same ones. Nobody may change it."""
    return CODEC.decode(topic, value)


@dataclass
class Entry:
    """One offset of a topic; a marker has no record."""

    record: Record | None
    state: str
    """`committed`, `open` or `aborted`."""


@dataclass
class Transaction:
    """An open or ended transaction."""

    entries: list[Entry] = field(default_factory=list)
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: dict[TopicPartition, Committed] = field(default_factory=dict)
    state: str = "open"


class Log:
    """The partitions of every topic, and the group that reads them."""

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.topics: dict[TopicPartition, list[Entry]] = {}
        self.begins: dict[TopicPartition, int] = {}
        """First offset of each partition; without an entry: 0."""
        self.committed: dict[TopicPartition, Committed] = {}
        self.generation = 0
        self.members: frozenset[str] = frozenset()
        """Members of the generation."""
        self.transactions: dict[str, Transaction] = {}
        """The newest transaction of each transactional id."""
        self.now_ms = T0_MS
        """The clock of the brokers and of all workers."""
        self.pending_settles = 0
        """Calls of `settle` after which the group's offsets can be read."""
        self.epochs: dict[str, int] = {}

    def partition_of(self, key: str) -> int:
        return sum(key.encode()) % self.partitions

    def append(self, topic: str, key: str, value: bytes, state: str = "committed") -> Entry:
        number = self.partition_of(key)
        entries = self.topics.setdefault((topic, number), [])
        entry = Entry(Record(topic, number, len(entries), self.now_ms, key.encode(), value), state)
        entries.append(entry)
        return entry

    def append_aborted(self, topic: str, key: str, value: bytes) -> None:
        """Append a record of a transaction that failed, and the transaction's marker."""
        self.append(topic, key, value, "aborted")
        self.topics[topic, self.partition_of(key)].append(Entry(None, "committed"))

    def begin(self, topic: str, partition: int = 0) -> int:
        return self.begins.get((topic, partition), 0)

    def end(self, topic: str, partition: int = 0) -> int:
        return len(self.topics.get((topic, partition), []))

    def delete_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """Delete the first records, as retention does."""
        self.begins[topic, partition] = max(offset, self.begin(topic, partition))

    def size(self, topics: Collection[str] | None = None) -> int:
        """Return the number of offsets of some topics; None: of all."""
        return sum(len(entries) for (topic, _), entries in self.topics.items() if topics is None or topic in topics)

    def last_stable_offset(self, topic: str, partition: int) -> int:
        states = [entry.state for entry in self.topics.get((topic, partition), [])]
        return states.index("open") if "open" in states else len(states)

    def finish(self, transaction: Transaction, state: str) -> None:
        """Commit or abort."""
        assert transaction.state == "open"
        transaction.state = state
        for entry in transaction.entries:
            entry.state = state
        for partition in transaction.partitions:
            self.topics[partition].append(Entry(None, "committed"))
        if state == "committed":
            self.committed |= transaction.offsets

    def settle(self, outcome: Callable[[], str]) -> None:
        """End the open transactions of workers that do not go on."""
        for transaction in self.transactions.values():
            if transaction.state == "open":
                self.finish(transaction, outcome() if transaction.offsets else "aborted")

    def read(self, topic: str, begin: int, end: int, partition: int = 0) -> list[Record]:
        stable = self.last_stable_offset(topic, partition)
        first = max(begin, self.begin(topic, partition))
        entries = self.topics.get((topic, partition), [])[first : min(end, stable)]
        return [entry.record for entry in entries if entry.state == "committed" and entry.record is not None]

    def events(self, topic: str) -> list[Any]:
        records = [record for n in range(self.partitions) for record in self.read(topic, 0, self.end(topic, n), n)]
        return [_decoded(topic, record.value) for record in records]

    def rebalance(self, shares: Mapping["Worker", Sequence[int]]) -> None:
        """Begin a generation whose members get partitions when they `join`. Others do not notice."""
        self.generation += 1
        self.members = frozenset(worker.member_id for worker in shares)
        for worker, partitions in shares.items():
            member = GroupMember("group", self.generation, worker.member_id, worker.name)
            worker.assigned = member, tuple(partitions)


class Reader:
    """`LogReader` of a `Log`. A call that waits for open transactions ends them: `outcome` says how."""

    def __init__(self, log: Log, outcome: Callable[[], str]) -> None:
        self._log, self._outcome = log, outcome

    def identity(self, _topics: Sequence[str]) -> str:
        return "log"

    def committed(
        self, topics: Iterable[str], partitions: Iterable[int], settle: Callable[[], None]
    ) -> dict[TopicPartition, Committed]:
        self._log.settle(self._outcome)
        while self._log.pending_settles:
            settle()
        wanted = itertools.product(topics, partitions)
        return {one: self._log.committed[one] for one in wanted if one in self._log.committed}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._log.begin(topic, partition), self._log.last_stable_offset(topic, partition)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {one: self._log.end(*one) for one in partitions}

    def since(self, topic: str, _timestamp_ms: int) -> dict[TopicPartition, tuple[int, int]]:
        numbers = range(self._log.partitions)
        return {(topic, number): (self._log.begin(topic, number), self._log.end(topic, number)) for number in numbers}

    def read(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[list[Record]]:
        self._log.settle(self._outcome)
        for (topic, number), (begin, end) in ranges.items():
            yield self._log.read(topic, begin, end, number)

    def partition_of(self, _topic: str, key: str) -> int:
        return self._log.partition_of(key)

    def close(self) -> None:
        pass


class Publisher:
    """`TransactionalPublisher` of a `Log`.

    `interrupt(point)` may raise `Killed`, raise `Cancelled` where a wait for a broker can, or let others act.
    """

    def __init__(self, log: Log, transactional_id: str, interrupt: Callable[[str], None]) -> None:
        self._log, self._id, self._interrupt = log, transactional_id, interrupt
        self._epoch: int | None = None

    def settle(self, _topic: str, _member: GroupMember) -> None:
        self._log.pending_settles = max(0, self._log.pending_settles - 1)
        if self._epoch is None:
            before = self._log.transactions.get(self._id)
            if before is not None and before.state == "open":
                self._log.finish(before, "aborted")
            self._epoch = self._log.epochs[self._id] = self._log.epochs.get(self._id, 0) + 1

    def commit(self, outputs: Sequence[Output], offsets: list[Offset], member: GroupMember) -> None:
        self._interrupt("beginning")
        self._check_epoch()
        transaction = self._log.transactions[self._id] = Transaction()
        try:
            self._send(transaction, outputs, offsets, member)
        except Cancelled:
            self._check_open(transaction)
            self._log.finish(transaction, "aborted")
            raise
        self._interrupt("offsets sent")
        if transaction.state != "committed":  # another worker may have waited for its outcome
            self._check_open(transaction)
            self._log.finish(transaction, "committed")
        self._interrupt("committed")

    def _send(
        self, transaction: Transaction, outputs: Sequence[Output], offsets: list[Offset], member: GroupMember
    ) -> None:
        for output in outputs:
            transaction.entries.append(self._log.append(output.topic, output.key, output.value, "open"))
            transaction.partitions.add((output.topic, self._log.partition_of(output.key)))
        self._interrupt("published")
        self._check_open(transaction)
        if member.generation != self._log.generation or member.member_id not in self._log.members:
            self._log.finish(transaction, "aborted")
            raise Refused("another owner")
        transaction.offsets = {(one.topic, one.partition): Committed(one.offset, one.metadata or "") for one in offsets}

    def _check_epoch(self) -> None:
        if self._log.epochs[self._id] != self._epoch:
            raise Fatal("fenced")

    def _check_open(self, transaction: Transaction) -> None:
        self._check_epoch()
        if transaction.state != "open":
            raise Fatal("the broker ended the transaction")


@cache
def _default_settings() -> Settings:
    return Settings()


class Worker:
    """A worker of one job; it survives its processes."""

    def __init__(self, name: str, log: Log, folder: Path, make_job: Callable[[Settings], FoldJob]) -> None:
        self.name, self.log, self._folder, self._make_job = name, log, folder, make_job
        self.processes, self.losses, self.clock_s = 0, 0, 0.0
        self.interrupt: Callable[[str], None] = lambda _point: None
        self.outcome: Callable[[], str] = lambda: "aborted"
        self.processor: FoldProcessor | None = None
        self.assigned: tuple[GroupMember, Sequence[int]] | None = None
        """Membership and partitions that the worker has not noticed yet."""
        self.member: GroupMember | None = None
        """Membership under which it reads; None: it must join the group."""
        self.positions: dict[TopicPartition, int] = {}
        self.inputs: tuple[str, ...] = ()
        self.killed = False
        """True once the process was killed during an upload."""
        self.settings: dict[str, Any] = {}
        """Of the jobs, for the next process."""
        self.state = folder

    def start(self) -> None:
        """Start a process."""
        self.processes += 1
        snapshots = str(self._folder / "snapshots")
        folder = self._folder / f"{self.name}-{self.losses}"
        fields: dict[str, Any] = {"state": folder, "snapshots": snapshots, "snapshot_interval_s": INTERVAL_S}
        configured = _default_settings().model_copy(update={"jobs": JobsSettings(**fields | self.settings)})
        job = self._make_job(configured)
        self.state = folder / job.name
        self.inputs = tuple(job.inputs)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processor, "sealing_codec", lambda _, **__: LocalCodec())
            patch.setattr(processor, "LogReader", lambda *_: Reader(self.log, self.outcome))
            patch.setattr(processor, "TransactionalPublisher", self._publisher)
            patch.setattr(processor, "SnapshotWriter", self._snapshot_writer)
            self.processor = FoldProcessor(configured, job, lambda: False, lambda: self.log.now_ms)
        self.member = self.assigned = None

    @property
    def member_id(self) -> str:
        return f"{self.name}#{self.processes}"

    def _publisher(self, *_: Any) -> Publisher:
        return Publisher(self.log, self.name, lambda point: self.interrupt(point))

    def _snapshot_writer(self, store: SnapshotStore, folder: Path, interval_s: float) -> SnapshotWriter:
        """A writer that uploads at once in the calling thread, by the model's clock."""

        def start(upload: Callable[[], None]) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(snapshot_store, "write_file", self._write_file)
                upload()

        return SnapshotWriter(store, folder, interval_s, start=start, now_s=lambda: self.clock_s)

    def _write_file(self, address: str, path: str, content: Path | bytes) -> None:
        if self.killed:  # the writer takes the first one for a fault of the store
            raise Killed
        try:
            self.interrupt("uploading")
        except Killed:
            self.killed = True
            raise
        write_file(address, path, content)

    def snapshot(self) -> None:
        """Let the time of a snapshot come."""
        assert self.processor is not None
        self.clock_s += INTERVAL_S
        self.killed = False
        self.processor.tick()
        if self.killed:
            raise Killed

    def kill(self, *, with_folder: bool = False) -> None:
        """End the process; `with_folder` also loses its machine."""
        if self.processor is not None:
            self.processor.shut_down()
        self.processor = self.member = self.assigned = None
        self.losses += with_folder

    def own(self) -> None:
        """Become the owner of all partitions in a new generation; the owner before does not notice."""
        if self.processor is None:
            self.start()
        self.log.rebalance({self: range(self.log.partitions)})
        self.join()

    def join(self) -> None:
        """Take the assigned partitions."""
        assert self.processor is not None
        assert self.assigned is not None
        (self.member, partitions), self.assigned = self.assigned, None
        self.processor.open(partitions, self.member)
        committed = self.log.committed
        lows = {one: self.log.begin(*one) for one in itertools.product(self.inputs, partitions)}
        self.positions = {
            one: max(low, committed[one].offset if one in committed else low) for one, low in lows.items()
        }

    def leave(self) -> None:
        """Release the partitions: a rebalance begins."""
        assert self.processor is not None
        self.processor.close({number for _, number in self.positions})
        self.member = None

    def deliver(self, most: int) -> bool:
        """Process the next fetch, of up to `most` records of each partition. Return False if there are none."""
        assert self.processor is not None
        assert self.member is not None
        records: list[Record] = []
        moved: dict[TopicPartition, tuple[int, int]] = {}
        for (topic, number), begin in self.positions.items():
            stable = self.log.last_stable_offset(topic, number)
            found = self.log.read(topic, begin, stable, number)
            end = found[most].offset if len(found) > most else stable
            records += found[:most]
            if end > begin:
                moved[topic, number] = begin, end
        if not moved:
            return False
        self.positions |= {one: end for one, (_, end) in moved.items()}
        self.processor.process(Fetch(self.member, records, moved))
        return True
