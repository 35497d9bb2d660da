"""Script Kafka's client, the schema registry and the observer of `SpooledProducer`, for tests without a broker."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from stepstream.config import Settings
from stepstream.topics.codec import Codec, NotRegistered, RegistryUnavailable, Sealing

MAX_MESSAGE_BYTES = 10 * 1024 * 1024


class Message:
    """A produced message, as a delivery report presents it."""

    def __init__(self, topic: str, key: str, value: bytes, event_id: str) -> None:
        self._fields = topic, key.encode(), value, [("ce_id", event_id.encode())]

    def topic(self) -> str:
        return self._fields[0]

    def key(self) -> bytes:
        return self._fields[1]

    def value(self) -> bytes:
        return self._fields[2]

    def headers(self) -> list[tuple[str, bytes]]:
        return self._fields[3]


class ScriptedKafka:
    """The client and the broker in one."""

    def __init__(self) -> None:
        self.is_up = True
        self.client_capacity = 10**9
        """Unanswered messages that the client takes."""
        self.log: list[tuple[str, str]] = []
        """Topic and event id of each delivered message, in order."""
        self.values: dict[str, bytes] = {}
        """Value of the last message, by event id."""
        self.queue: list[tuple[Message, Any]] = []
        self.fail: Callable[[str], int | None] = lambda event_id: None
        """Returns the error code of a delivery, by event id; None: it succeeds."""

    def ids(self, topic: str = "steps") -> list[str]:
        return [event_id for name, event_id in self.log if name == topic]

    def producer(self, *_: Any, **__: Any) -> "ScriptedKafka":
        return self

    def send_encoded(
        self, topic: str, key: str, value: bytes, record: Any, headers: Any = None, on_delivery: Any = None
    ) -> None:
        if len(self.queue) >= self.client_capacity:
            raise BufferError
        if len(value) > MAX_MESSAGE_BYTES:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        self.queue.append((Message(topic, key, value, record["event_id"]), on_delivery))

    def poll(self, timeout_s: float = 0.0) -> int:
        if not self.is_up:
            return 0
        queue, self.queue = self.queue, []
        for message, on_delivery in queue:
            event_id = message.headers()[0][1].decode()
            code = self.fail(event_id)
            if code is None:
                self.log.append((message.topic(), event_id))
                self.values[event_id] = message.value()
            on_delivery(None if code is None else KafkaError(code), message)
        return len(queue)

    def flush(self, timeout_s: float) -> None:
        self.poll()


class ScriptedRegistry(Codec):
    """A codec without a registry: header `...1` for this package's schemas, `...2` for others."""

    def __init__(self, sealing: Sealing | None = None) -> None:
        super().__init__(Settings(), sealing)
        self.is_up = True
        self.unregistered: set[str] = set()
        """Texts of schemas that the registry does not have."""

    def header(self, topic: str, text: str | None = None) -> bytes:
        if not self.is_up:
            raise RegistryUnavailable("away")
        if text in self.unregistered:
            raise NotRegistered("no such schema")
        return b"\0\0\0\0\2" if text else b"\0\0\0\0\1"


class OutcomeCounts:
    """Counts events by outcome."""

    def __init__(self) -> None:
        self.delivered = self.rejected = self.dropped = self.unspooled = 0

    def on_delivered(self, events: int) -> None:
        self.delivered += events

    def on_rejected(self, events: int) -> None:
        self.rejected += events

    def on_dropped(self, events: int) -> None:
        self.dropped += events

    def on_unspooled(self, events: int) -> None:
        self.unspooled += events

    def on_backlog(self, events: int, spool_bytes: int) -> None:
        pass
