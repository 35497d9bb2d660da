"""Represent a raw record of the log, its origin, and the reason why it is invalid."""

import hashlib
from dataclasses import dataclass

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """One raw record of an input topic. `timestamp_ms` is set by the broker or the producer."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    traceparent: str = ""
    """Its trace (W3C Trace Context); empty: none."""


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """Position, key, size and digest of a record, without its content, for a dead letter."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value_bytes: int
    value_sha256: str | None
    """Lower-case hexadecimal; None: the record has no value."""

    @staticmethod
    def of(record: Record) -> "RecordOrigin":
        """Describe a record."""
        value = record.value
        digest = None if value is None else hashlib.sha256(value).hexdigest()
        position = record.topic, record.partition, record.offset, record.timestamp_ms
        return RecordOrigin(*position, record.key, len(value or b""), digest)


class InvalidRecord(Exception):
    """A record that cannot be used and becomes a dead letter. `reason` never contains the record's content."""

    def __init__(self, error: str, reason: str, tenant: str = "") -> None:
        """`tenant` is the sender to blame; empty: the tenant that the record names."""
        super().__init__(f"{error}: {reason}")
        self.error = error
        self.reason = reason
        self.tenant = tenant
