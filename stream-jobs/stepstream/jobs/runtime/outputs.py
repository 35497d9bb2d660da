"""Collect the results of a batch (events, dead letters, counts), and publish them outside of a job."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import prometheus_client

from stepstream.config import Settings
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.record import InvalidRecord, Record, RecordOrigin
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.jobs.runtime.spans import BatchSpans
from stepstream.topics.catalogue import DEAD_LETTERS, TOPICS
from stepstream.topics.codec import Codec, CodecError, Oversized, Unencodable
from stepstream.topics.events import new_dead_letter
from stepstream.topics.ids import derived_id
from stepstream.topics.producer import EventProducer

_KEY_BYTES = 9_000
_REASON_CHARACTERS = 500
_OVERHEAD_BYTES = 2_048
"""Bound on the bytes that a record's key, headers and framing add to its value."""
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Output:
    """One encoded event to publish."""

    topic: str
    key: str
    value: bytes
    event_id: str
    occurred_at_us: int
    traceparent: str = ""


class Outputs:
    """The results of one batch, in order."""

    def __init__(
        self,
        job: str,
        codec: Codec,
        retry: Callable[[Callable[[], Any]], Any],
        spans: BatchSpans | None = None,
    ) -> None:
        """Begin with none.

        Args:
            job: name and version, as `govern@1`.
            codec: encodes the events.
            retry: repeats a call while the registry is unavailable.
            spans: traces of the batch; None: tracing is off.
        """
        self._job = job
        self.spans = spans
        self._codec = codec
        self._retry = retry
        self.events: list[Output] = []
        self.received: Counter[str] = Counter()
        """Records of the batch by tenant; the empty name counts those without a tenant."""
        self.dead_lettered: Counter[str] = Counter()
        """Dead letters by tenant, likewise."""
        self.replaying = False
        """True while state is rebuilt: nothing is published."""
        self._counts: list[tuple[prometheus_client.Counter, int]] = []

    def emit(self, topic: str, key: str, record: Any) -> None:
        """Queue an event of a catalogue topic.

        Raises:
            InvalidRecord: the event does not fit its schema or exceeds its topic's size limit.
        """
        try:
            value: bytes = self._retry(lambda: self._codec.encode(topic, record))
        except Unencodable as error:
            raise InvalidRecord("invalid", f"result does not fit {topic}: {type(error.__cause__).__name__}") from error
        except Oversized as error:
            raise InvalidRecord(error.kind, f"result: {error}") from error
        if len(value) + len(key) + _OVERHEAD_BYTES > TOPICS[topic].max_message_bytes:
            raise InvalidRecord("oversized", f"result of {len(value)} bytes exceeds the limit of {topic}")
        traceparent = "" if self.spans is None or self.replaying else self.spans.emit(topic, record)
        self.events.append(Output(topic, key, value, record["event_id"], record["occurred_at_us"], traceparent))

    def seal(self, topic: str, record: Any) -> bytes:
        """Encode a record for the job's state as for its topic, sealed if it names a person; it may have any size."""
        value: bytes = self._retry(lambda: self._codec.encode(topic, record, whole=True))
        return value

    def open(self, topic: str, value: bytes) -> Any:
        """Decode a record that `seal` encoded; it is marked as erased if its person was erased.

        Raises:
            InvalidRecord: the record cannot be decoded any more.
        """
        try:
            return self._retry(lambda: self._codec.decode(topic, value))
        except CodecError as error:
            raise InvalidRecord(error.kind, str(error)) from error

    def dead_letter(self, record: Record | RecordOrigin, invalid: InvalidRecord, *, counts: bool = True) -> None:
        """Queue the dead letter of a record: its position and the reason, without its value, which is not redacted.

        Args:
            record: the invalid record.
            invalid: the reason.
            counts: include it in the job's share of dead letters; False for records that anybody can forge.
        """
        origin = record if isinstance(record, RecordOrigin) else RecordOrigin.of(record)
        self.dead_lettered[invalid.tenant] += counts
        self.count(metrics.DEAD_LETTERS.labels(origin.topic, invalid.error))
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
            error=invalid.error,
            reason=invalid.reason[:_REASON_CHARACTERS],
            tenant=invalid.tenant or None,
        )
        self.emit(DEAD_LETTERS, (letter["key"] or b"").decode(errors="replace"), letter)

    def count(self, counter: prometheus_client.Counter, by: int = 1) -> None:
        """Queue a metric increment; `apply_counts` applies it, so that a rebuild of state counts nothing twice."""
        self._counts.append((counter, by))

    def apply_counts(self) -> None:
        """Add the queued increments to the metrics, and end the spans: the batch took effect."""
        for counter, by in self._counts:
            counter.inc(by)
        if self.spans is not None:
            self.spans.end()


class Publisher:
    """Publishes without transactions, for a command that has no input offsets. Use from one thread."""

    def __init__(self, settings: Settings, codec: Codec, source: str, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled
        self._producer = EventProducer(settings.kafka, codec, source, linger_ms=0.0)

    def publish(self, outputs: Sequence[Output]) -> None:
        """Publish events; block until the brokers have acknowledged all of them, however long one is unavailable.

        Raises:
            Cancelled: the work was cancelled while waiting; some events may still be published later.
            DeliveryFailed: Kafka rejected some events permanently.
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
