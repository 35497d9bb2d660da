"""A record of the log as the jobs pass it around: raw bytes with their place, and its refusal."""

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


class Refused(Exception):
    """A record that cannot be used; becomes a dead letter. `reason` never holds the record's content."""

    def __init__(self, error: str, reason: str) -> None:
        super().__init__(f"{error}: {reason}")
        self.error = error
        self.reason = reason
