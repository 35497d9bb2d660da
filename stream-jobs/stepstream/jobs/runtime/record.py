"""A record of the log as the jobs pass it around: raw bytes with their place, and its refusal."""

import hashlib
from dataclasses import dataclass

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """One raw record of an input topic; `timestamp_ms` is the broker's or producer's time of it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """Where a record stands and which one it is, without what it says: what its dead letter tells."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value_bytes: int
    value_sha256: str | None
    """Lower-case hexadecimal; None: it has no value."""

    @staticmethod
    def of(record: Record) -> "RecordOrigin":
        """That of a record at hand."""
        value = record.value
        digest = None if value is None else hashlib.sha256(value).hexdigest()
        place = record.topic, record.partition, record.offset, record.timestamp_ms
        return RecordOrigin(*place, record.key, len(value or b""), digest)


class InvalidRecord(Exception):
    """A record that cannot be used; becomes a dead letter. `reason` never holds the record's content."""

    def __init__(self, error: str, reason: str, tenant: str = "") -> None:
        """`tenant`: whose input it is, where the record at hand does not name its tenant or not the one to blame."""
        super().__init__(f"{error}: {reason}")
        self.error = error
        self.reason = reason
        self.tenant = tenant
