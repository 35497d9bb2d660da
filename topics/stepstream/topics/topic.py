"""Describe one topic: name, key, value schema, partitions, retention, writers, readers and personal fields."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the SDK imports the catalogue, and not pydantic
    from stepstream.config import Settings, TopicsSettings

DAY_MS = 86_400_000
MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default of `max.message.bytes`."""


@dataclass(frozen=True)
class Topic:
    """One topic of the log."""

    name: str
    key: str
    """Meaning of the record key."""
    schema: str
    """Name of the value's Avro record."""
    doc: str
    """Content, in one sentence for docs/protocol.md."""
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    """Programs, commands (`replay`, `export`, `erase`), or in words; `people`: other commands that people run."""
    personal: tuple[str, ...] = ()
    """Fields of the value that are encrypted if it has a `user`, in the order of the blob; empty: never sealed."""
    partitions: int | None = None
    """Fixed number of partitions; None: `topics.partitions`, the same for all these topics."""
    cleanup: Literal["delete", "compact", "compact,delete"] = "delete"
    retention_ms: int = -1
    """Milliseconds before Kafka deletes a record; -1: unlimited. Ignored with `compact` alone."""
    retention_setting: str = ""
    """Field of `TopicsSettings` that replaces `retention_ms`; empty: none."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    copied: bool = True
    """False: `topics copy` leaves it out, since its records name positions in the log, or are soon written again."""
    config: dict[str, str] = field(default_factory=dict)
    """Further configuration in Kafka's names."""

    @property
    def retention(self) -> str:
        """How long Kafka keeps records, in words."""
        if self.cleanup == "compact":
            return "newest of each key"
        if self.retention_setting:
            return f"unlimited, or `topics.{self.retention_setting}`"
        time = "unlimited" if self.retention_ms < 0 else f"{self.retention_ms // DAY_MS} days"
        return f"newest of each key, {time}" if self.is_compacted else time

    @property
    def is_compacted(self) -> bool:
        """True if Kafka keeps only the newest record of each key, so that a record without a value deletes its key."""
        return "compact" in self.cleanup

    def partition_count(self, configured: "TopicsSettings") -> int:
        """Return the number of partitions that the topic has when it is created."""
        return configured.partitions if self.partitions is None else self.partitions

    @property
    def subject(self) -> str:
        """Subject of the value's schema in the registry, without `kafka.prefix`."""
        return f"{self.name}-value"

    def settings(self, settings: "Settings") -> dict[str, str]:
        """Return the topic's configuration in the names of Kafka's admin API."""
        values = {
            "cleanup.policy": self.cleanup,
            "max.message.bytes": str(self.max_message_bytes),
            "min.insync.replicas": str(settings.kafka.in_sync_replicas),
            **self.config,
        }
        if "delete" in self.cleanup:
            seconds = getattr(settings.topics, self.retention_setting) if self.retention_setting else 0
            values["retention.ms"] = str(round(seconds * 1000) if seconds else self.retention_ms)
        return values
