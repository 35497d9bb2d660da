"""Run a fold without Kafka, registry or RocksDB: the state is a dict."""

import io
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import fastavro
from prometheus_client import REGISTRY

from stepstream.config import Settings
from stepstream.jobs.runtime.fold import Fold
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.state import Changes
from stepstream.schemas import schema
from stepstream.topics.avro_reader import Reader, compile_reader
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.codec import Codec


@cache
def _parsed(name: str) -> Any:
    return fastavro.parse_schema(schema(name))


@cache
def _reader(name: str) -> Reader:
    return compile_reader(_parsed(name))


@cache
def _codec() -> Codec:
    return Codec(Settings())


class LocalCodec:
    """Encodes and decodes as a job does, with the package's schemas, without a registry."""

    def __init__(self) -> None:
        self.earlier: dict[str, Any] = {}
        """Schemas of an earlier release by name, which wrote the records that the package's cannot read."""

    def encode(self, topic: str, record: Any, *, whole: bool = False) -> bytes:
        return _codec().body(topic, record)

    def decode(self, topic: str, value: bytes | None) -> Any:
        assert value is not None
        name = TOPICS[topic].schema
        try:
            record, end = _reader(name)(value, 0)
            if name in self.earlier and end != len(value):
                raise ValueError("the record is of another schema")
        except Exception:  # as `Codec.decode`
            if name in self.earlier:
                return fastavro.schemaless_reader(io.BytesIO(value), self.earlier[name], _parsed(name))
            return fastavro.schemaless_reader(io.BytesIO(value), _parsed(name), None)
        assert end == len(value)
        return record

    def close(self) -> None:
        pass


class MemoryState:
    """State of a partition in a dict."""

    def __init__(self) -> None:
        self.content: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.content.get(key)

    def scan(self, prefix: bytes, begin: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self.content):
            if key.startswith(prefix) and key >= prefix + begin:
                yield key[len(prefix) :], self.content[key]

    def write(self, changes: "MemoryChanges") -> None:
        for begin, end in changes.ranges:
            for key in [key for key in self.content if begin <= key < end]:
                del self.content[key]
        for key, value in changes.overlay.items():
            if value is None:
                self.content.pop(key, None)
            else:
                self.content[key] = value


class MemoryChanges(Changes):
    """Changes on top of a `MemoryState`."""

    def __init__(self, state: MemoryState) -> None:
        super().__init__(state)  # type: ignore[arg-type]
        self.ranges: list[tuple[bytes, bytes]] = []

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.ranges.append((begin, end))


class FoldRun:
    """One partition of a job; a test feeds its records."""

    def __init__(self, job: str, fold: Fold, state: MemoryState) -> None:
        self.fold, self.state = fold, state
        self.codec = LocalCodec()
        self._job = job
        self._offsets: dict[str, int] = {}

    def record(self, topic: str, event: Any, *, key: bytes | None = None, at_ms: int = 1_760_000_100_000) -> Record:
        """Return the next record of a topic."""
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        record_key = event["trajectory_id"].encode() if key is None else key
        return Record(topic, 0, offset, at_ms, record_key, self.codec.encode(topic, event))

    def feed(self, records: Sequence[Record]) -> list[tuple[str, str, Any]]:
        """Fold one batch; return (topic, key, event) of each output."""
        changes = MemoryChanges(self.state)
        out = Outputs(self._job, self.codec, lambda call: call())  # type: ignore[arg-type]
        for record in records:
            try:
                self.fold.apply(record, self.codec.decode(record.topic, record.value), changes, out)
            except InvalidRecord as error:
                out.dead_letter(record, error)
        self.fold.end_batch(changes, out)
        self.state.write(changes)
        out.apply_counts()
        return [(o.topic, o.key, self.codec.decode(o.topic, o.value)) for o in out.events]

    def tick(self, now_ms: int) -> list[tuple[str, str, Any]]:
        """Tick the fold if it is due; return (topic, key, event) of each output."""
        changes = MemoryChanges(self.state)
        out = Outputs(self._job, self.codec, lambda call: call())  # type: ignore[arg-type]
        if self.fold.due(now_ms):
            self.fold.tick(now_ms, changes, out)
        self.state.write(changes)
        out.apply_counts()
        return [(o.topic, o.key, self.codec.decode(o.topic, o.value)) for o in out.events]


def state_added(kind: str) -> float:
    """Return how many entries of a kind this process has added to states."""
    return REGISTRY.get_sample_value("stepstream_job_state_added_total", {"kind": kind}) or 0.0


def state_removed(kind: str, why: str) -> float:
    """Return how many entries of a kind this process has removed from states, by `age` or by the `cap`."""
    return REGISTRY.get_sample_value("stepstream_job_state_removed_total", {"kind": kind, "why": why}) or 0.0
