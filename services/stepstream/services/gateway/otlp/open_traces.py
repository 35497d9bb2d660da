"""Follows the parts of traces that wait on the log, and tells a trace's steps once it has settled.

A trace has settled when its root span has ended and `grace_s` seconds brought nothing more, when `settle_s` seconds
brought nothing, or when too much waits. Offsets are committed only past traces whose steps Kafka has, so a gateway
that is killed loses none: whoever takes over its partitions reads their parts again. What cannot be read or told, or
what Kafka will never take, is a dead letter.
"""

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from stepstream.config import Settings
from stepstream.delivery.confirmed_producer import NotDelivered
from stepstream.services.gateway.otlp.assembly import AssembledRecord
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.intake import TOPIC
from stepstream.services.gateway.otlp.spans import logs_of, spans_of
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.wire import TraceRequest
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.events import new_dead_letter
from stepstream.topics.ids import derived_id, now_us

log = logging.getLogger(__name__)

GROUP = "otlp"
LETTERS, JOB = "dead-letters", "gateway"
BATCH = 500
WAIT_S = 0.2
PAUSE_S = 1.0
REMEMBERED = 1_000


Publish = Callable[[list[AssembledRecord]], list[str]]
"""Blocks until Kafka has the records, and raises `NotDelivered` if it has not in time; why it will never take some."""


@dataclass(slots=True)
class _Open:
    """A trace whose parts are read and whose steps are not told, or were told before a late part came."""

    trace: Trace
    defaults: Defaults
    place: tuple[int, int]
    """Partition, and offset of the first part that is not told yet."""
    bytes: int = 0
    seen_at: float = 0.0


class OpenTraces:
    """One member of the group that tells open traces, in a thread of its own. Close it."""

    def __init__(
        self, settings: Settings, codec: Codec, tell: Callable[[Trace, Defaults], list[AssembledRecord]], agent: str
    ) -> None:
        """`tell` makes the records of a settled trace; `agent` names agents that do not say."""
        self._settings = settings
        self._codec = codec
        self._tell = tell
        self._agent = agent
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._told: OrderedDict[str, _Open] = OrderedDict()
        self._expected: OrderedDict[str, None] = OrderedDict()
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._stopping = threading.Event()
        self._publish: Publish | None = None
        self._thread = threading.Thread(target=self._serve, name="open-traces", daemon=True)

    def start(self, publish: Publish) -> None:
        """Begins to follow."""
        self._publish = publish
        self._thread.start()

    def expect(self, trace_id: str) -> None:
        """Notes that a part of this trace is on its way to the log."""
        self._expected[trace_id] = None
        if len(self._expected) > 100 * REMEMBERED:
            self._expected.popitem(last=False)

    def is_open(self, trace_id: str) -> bool:
        """Whether parts of this trace wait, or did: what comes of it now belongs with them."""
        return trace_id in self._expected or trace_id in self._open or trace_id in self._told

    def close(self) -> None:
        """Leaves the group."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            consumer = Consumer(
                client_config(self._settings.kafka)
                | {
                    "group.id": GROUP,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": 6000,
                    "fetch.wait.max.ms": 200,
                    "fetch.message.max.bytes": 16 * 1_048_576,
                }
            )
            try:
                consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
                self._follow(consumer)
            except (KafkaException, RegistryUnavailable, NotDelivered) as error:
                log.warning("open traces wait: %s", error)
                self._stopping.wait(PAUSE_S)
            finally:
                self._forget(set(self._positions))
                consumer.close()

    def _follow(self, consumer: Consumer) -> None:
        while not self._stopping.is_set():
            for message in consumer.consume(BATCH, WAIT_S):
                if message.error() is None:
                    self._read(message)
            self._settle(time.monotonic())
            self._commit(consumer)

    def _read(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        value = message.value() or b""
        try:
            record = self._codec.decode(TOPIC, value)
            if record["signal"] == "traces":
                spans = list(spans_of(TraceRequest.FromString(record["payload"])))
                logs = []
            else:
                spans = []
                logs = list(logs_of(ExportLogsServiceRequest.FromString(record["payload"])))
        except (CodecError, DecodeError, ValueError) as error:
            kind = error.kind if isinstance(error, CodecError) else "malformed"
            digest = hashlib.sha256(value).hexdigest()
            self._refuse((partition, offset), message.key() or b"", len(value), digest, kind, str(error))
            self._positions[partition] = offset + 1
            return
        self._positions[partition] = offset + 1
        trace_id = record["trace_id"]
        known = self._open.pop(trace_id, None)
        if known is None:
            known = self._told.pop(trace_id, None)
            if known is None:
                known = _Open(
                    Trace(trace_id),
                    Defaults(record["tenant"], record["consent"], self._agent),
                    (partition, offset),
                )
            known.place = partition, offset
        self._open[trace_id] = known
        for span in spans:
            known.trace.add(span)
        for told in logs:
            known.trace.add_log(told)
        known.bytes += len(record["payload"])
        known.seen_at = time.monotonic()

    def _settle(self, now: float) -> None:
        options = self._settings.otlp
        held = sum(known.bytes for known in self._open.values())
        for trace_id, known in list(self._open.items()):  # the ones longest without a part come first
            wait = options.grace_s if known.trace.root_ended() else options.settle_s
            if now - known.seen_at < wait and held <= options.open_mb * 1_000_000:
                continue
            try:
                if why := self._told_or_why_not(trace_id, known):
                    self._refuse(known.place, trace_id.encode(), known.bytes, None, "invalid", why)
            except Exception as error:  # whatever keeps Kafka from having it: the trace waits
                log.warning("trace %s waits: %s", trace_id, error)
                return
            held -= known.bytes
            del self._open[trace_id]
            self._expected.pop(trace_id, None)
            self._told[trace_id] = known
            if len(self._told) > REMEMBERED:
                self._told.popitem(last=False)

    def _told_or_why_not(self, trace_id: str, known: _Open) -> str:
        """Publishes a trace's records; why some of them never will be, or empty."""
        assert self._publish is not None
        try:
            records = self._tell(known.trace, known.defaults)
        except Exception as error:  # it would hold up all others for ever
            log.exception("trace %s cannot be told", trace_id)
            return f"the trace cannot be told: {type(error).__name__}"
        return "; ".join(self._publish(records)) if records else ""

    def _refuse(
        self, place: tuple[int, int], key: bytes, size: int, digest: str | None, error: str, reason: str
    ) -> None:
        """Writes the dead letter of a part, or of the trace that begins with it; returns when Kafka has it."""
        assert self._publish is not None
        partition, offset = place
        log.error("%s[%d]@%d is a dead letter: %s", TOPIC, partition, offset, reason)
        letter = new_dead_letter(
            event_id=derived_id(JOB, "dead-letter", TOPIC, partition, offset),
            occurred_at_us=now_us(),
            job=JOB,
            topic=TOPIC,
            partition=partition,
            offset=offset,
            key=key,
            value_bytes=size,
            value_sha256=digest,
            error=error,
            reason=reason,
        )
        self._publish([AssembledRecord(LETTERS, key.decode(errors="replace"), letter)])

    def _commit(self, consumer: Consumer) -> None:
        """Commits each partition up to the first part of a trace that is not told."""
        safe = dict(self._positions)
        for known in self._open.values():
            partition, offset = known.place
            safe[partition] = min(safe.get(partition, offset), offset)
        moved = [TopicPartition(TOPIC, p, offset) for p, offset in safe.items() if self._committed.get(p) != offset]
        if moved:
            consumer.commit(offsets=moved, asynchronous=False)
            self._committed |= {place.partition: place.offset for place in moved}

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        log.info("following open traces of %d partitions", len(partitions))

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget({place.partition for place in partitions})

    def _forget(self, partitions: set[int]) -> None:
        for table in (self._open, self._told):
            for trace_id in [name for name, known in table.items() if known.place[0] in partitions]:
                del table[trace_id]
        for partition in partitions:
            self._positions.pop(partition, None)
            self._committed.pop(partition, None)
