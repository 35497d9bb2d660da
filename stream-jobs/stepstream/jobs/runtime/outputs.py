"""What a batch of records gives: events to publish, and dead letters for what could not be used.

Publishes the outputs of a batch and returns when the brokers have acknowledged all of them.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import prometheus_client

from stepstream.config import Settings
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.record import InvalidRecord, Record, RecordOrigin
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.codec import Codec, CodecError, Unencodable
from stepstream.topics.events import new_dead_letter
from stepstream.topics.ids import derived_id
from stepstream.topics.producer import EventProducer

DEAD_LETTERS = "dead-letters"
_KEY_BYTES = 9_000
_REASON_CHARACTERS = 500
_OVERHEAD_BYTES = 2_048
"""What a record's key, headers and framing may add to its value."""


@dataclass(frozen=True, slots=True)
class Output:
    """One encoded event on its way out."""

    topic: str
    key: str
    value: bytes
    event_id: str
    occurred_at_us: int


class Outputs:
    """Collects what one batch gives, in order."""

    def __init__(self, job: str, codec: Codec, patiently: Callable[[Callable[[], Any]], Any]) -> None:
        """`job` is its name and version, as `govern@1`; `patiently` repeats a call while the registry is away."""
        self._job = job
        self._codec = codec
        self._patiently = patiently
        self.events: list[Output] = []
        self.came: Counter[str] = Counter()
        """Records that were taken, by tenant; those that name none under the empty name."""
        self.refused: Counter[str] = Counter()
        """Dead letters, by tenant likewise."""
        self.silent = False
        """Nothing of it will be published: state is being rebuilt."""
        self._counted: list[tuple[prometheus_client.Counter, int]] = []

    def emit(self, topic: str, key: str, record: Any) -> None:
        """Queues an event of a catalogue topic.

        Raises:
            Refused: it does not fit its schema or is larger than its topic takes.
        """
        try:
            value: bytes = self._patiently(lambda: self._codec.encode(topic, record))
        except Unencodable as error:
            raise InvalidRecord("invalid", f"result does not fit {topic}: {type(error.__cause__).__name__}") from error
        if len(value) + len(key) + _OVERHEAD_BYTES > TOPICS[topic].max_message_bytes:
            raise InvalidRecord("oversized", f"result of {len(value)} bytes is larger than {topic} takes")
        self.events.append(Output(topic, key, value, record["event_id"], record["occurred_at_us"]))

    def sealed(self, topic: str, record: Any) -> bytes:
        """A record as it would be on a topic, to be kept in state: sealed where it names a person."""
        value: bytes = self._patiently(lambda: self._codec.encode(topic, record))
        return value

    def opened(self, topic: str, value: bytes) -> Any:
        """The reverse of `sealed`; marked as erased where its person was.

        Raises:
            Refused: it cannot be read any more.
        """
        try:
            return self._patiently(lambda: self._codec.decode(topic, value))
        except CodecError as error:
            raise InvalidRecord(error.kind, str(error)) from error

    def dead_letter(self, record: Record | RecordOrigin, refused: InvalidRecord, *, counts: bool = True) -> None:
        """Queues the dead letter of a record: its place and the reason, not its value, which nobody has redacted.

        Args:
            record: what cannot be used.
            refused: why.
            counts: whether it bears on the job's share of dead letters; not what anybody can send by a guess.
        """
        origin = record if isinstance(record, RecordOrigin) else RecordOrigin.of(record)
        self.refused[refused.tenant] += counts
        self.count(metrics.DEAD_LETTERS.labels(origin.topic, refused.error))
        letter = new_dead_letter(
            event_id=derived_id(self._job, "dead-letter", origin.topic, origin.partition, origin.offset),
            occurred_at_us=max(0, origin.timestamp_ms) * 1000,
            job=self._job,
            topic=origin.topic,
            partition=origin.partition,
            offset=origin.offset,
            key=origin.key if origin.key is None else origin.key[:_KEY_BYTES],
            value_bytes=origin.value_bytes,
            value_sha256=origin.value_sha256,
            error=refused.error,
            reason=refused.reason[:_REASON_CHARACTERS],
        )
        self.emit(DEAD_LETTERS, (letter["key"] or b"").decode(errors="replace"), letter)

    def count(self, counter: prometheus_client.Counter, by: int = 1) -> None:
        """Notes a count; it shows when the batch has its effect, so that rebuilding state counts nothing twice."""
        self._counted.append((counter, by))

    def show_counts(self) -> None:
        """Adds what was noted to the metrics."""
        for counter, by in self._counted:
            counter.inc(by)


def pack(outputs: Iterable[Output]) -> bytes:
    """Outputs as bytes for the outbox of a state store; none: empty."""
    fields = [(o.topic, o.key, o.value, o.event_id, o.occurred_at_us) for o in outputs]
    return pickle.dumps(fields) if fields else b""


def unpack(packed: bytes) -> list[Output]:
    """The reverse of `pack`. The store is this process's own folder, so its pickle can be trusted."""
    return [Output(*fields) for fields in pickle.loads(packed)]


_POLL_S = 0.5


class Publisher:
    """One producer of a job. Use from one thread."""

    def __init__(self, settings: Settings, codec: Codec, source: str, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled
        self._producer = EventProducer(settings.kafka, codec, source, linger_ms=0.0)

    def publish(self, outputs: Sequence[Output]) -> None:
        """Blocks until all of them are durable; a broker that is away is waited for.

        Raises:
            Abandoned: asked to give up while waiting; some of them may be published later all the same.
            DeliveryFailed: Kafka refused some for good.
        """
        for output in outputs:
            envelope = {"event_id": output.event_id, "occurred_at_us": output.occurred_at_us}
            while True:
                try:
                    self._producer.send_encoded(output.topic, output.key, output.value, envelope)
                    break
                except BufferError:
                    self._wait()
        while len(self._producer):
            self._wait()
        self._producer.flush()
        for topic, records in Counter(output.topic for output in outputs).items():
            metrics.RECORDS_OUT.labels(topic).inc(records)

    def _wait(self) -> None:
        if not self._producer.poll(_POLL_S) and self._cancelled():
            raise Cancelled
