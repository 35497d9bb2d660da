"""Collect the parts of open traces from Kafka, and publish a trace's steps once it has settled.

A trace settles after its root span has ended and `grace_s` seconds pass without a new part, after `settle_s` seconds
without a new part, or if open traces exceed `open_mb`. Offsets are committed only past traces whose steps Kafka has
acknowledged. So a killed gateway loses none: the next owner of its partitions reads the parts again. Unreadable parts,
traces that cannot be assembled, and records that Kafka rejects become dead letters.
"""

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from stepstream.config import Settings
from stepstream.delivery.confirmed_producer import NotDelivered
from stepstream.services.gateway.grant import stricter
from stepstream.services.gateway.otlp.assembly import AssembledRecord
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.spans import logs_of, spans_of
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.wire import TraceRequest
from stepstream.topics import client
from stepstream.topics.catalogue import DEAD_LETTERS, OPEN_TRACES
from stepstream.topics.codec import Codec, CodecError, RegistryUnavailable
from stepstream.topics.events import new_dead_letter
from stepstream.topics.ids import derived_id, now_us

log = logging.getLogger(__name__)

GROUP = "otlp"
JOB = "gateway"
BATCH = 500
WAIT_S = 0.2
PAUSE_S = 1.0
MAX_PUBLISHED = 1_000


TraceKey = tuple[str, str]
"""Tenant and trace id: tenants may send spans of one trace, and each gets its own part."""
Publish = Callable[[list[AssembledRecord]], list[str]]
"""Blocks until Kafka has acknowledged the records, and returns the reasons for permanently rejected ones; raises
`NotDelivered` after a timeout."""


@dataclass(slots=True)
class _OpenTrace:
    """A trace with parts that are not published yet, or a published one that may get late parts."""

    trace: Trace
    defaults: Defaults
    position: tuple[int, int]
    """Partition, and offset of the first unpublished part."""
    bytes: int = 0
    seen_at: float = 0.0


class OpenTraces:
    """One member of the consumer group of open traces, on its own thread. Close it."""

    def __init__(
        self, settings: Settings, codec: Codec, assemble: Callable[[Trace, Defaults], list[AssembledRecord]], agent: str
    ) -> None:
        """Set how to assemble a settled trace, and the name of agents without one."""
        self._settings = settings
        self._codec = codec
        self._assemble = assemble
        self._agent = agent
        self._open: OrderedDict[TraceKey, _OpenTrace] = OrderedDict()
        self._published: OrderedDict[TraceKey, _OpenTrace] = OrderedDict()
        self._expected: OrderedDict[TraceKey, None] = OrderedDict()
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._stopping = threading.Event()
        self._publish: Publish | None = None
        self._thread = threading.Thread(target=self._serve, name="open-traces", daemon=True)

    def start(self, publish: Publish) -> None:
        """Start the thread."""
        self._publish = publish
        self._thread.start()

    def expect(self, tenant: str, trace_id: str) -> None:
        """Note that a part of this trace is being sent to Kafka."""
        self._expected[tenant, trace_id] = None
        if len(self._expected) > 100 * MAX_PUBLISHED:
            self._expected.popitem(last=False)

    def is_open(self, tenant: str, trace_id: str) -> bool:
        """Return True if parts of this trace wait or waited, so that new parts must join them."""
        key = tenant, trace_id
        return key in self._expected or key in self._open or key in self._published

    def close(self) -> None:
        """Leave the group and end the thread; blocks for up to 10 s."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            consumer = client.consumer(
                self._settings.kafka,
                {
                    "group.id": GROUP,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": 6000,
                    "fetch.wait.max.ms": 200,
                    "fetch.message.max.bytes": 16 * 1_048_576,
                },
            )
            try:
                consumer.subscribe(
                    [OPEN_TRACES], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
                )
                self._follow(consumer)
            except (KafkaException, RegistryUnavailable, NotDelivered) as error:
                log.warning("open traces wait for Kafka or the registry: %s", error)
                self._stopping.wait(PAUSE_S)
            finally:
                self._drop_partitions(set(self._positions))
                consumer.close()

    def _follow(self, consumer: Consumer) -> None:
        while not self._stopping.is_set():
            for message in consumer.consume(BATCH, WAIT_S):
                if message.error() is None:
                    self._read(message)
            self._publish_settled(time.monotonic())
            self._commit(consumer)

    def _read(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        value = message.value() or b""
        tenant = None
        try:
            record = self._codec.decode(OPEN_TRACES, value)
            tenant = record["tenant"]
            if record["signal"] == "traces":
                spans = list(spans_of(TraceRequest.FromString(record["payload"])))
                logs = []
            else:
                spans = []
                logs = list(logs_of(ExportLogsServiceRequest.FromString(record["payload"])))
        except (CodecError, DecodeError, ValueError) as error:
            kind = error.kind if isinstance(error, CodecError) else "malformed"
            digest = hashlib.sha256(value).hexdigest()
            self._dead_letter((partition, offset), message.key() or b"", len(value), digest, kind, str(error), tenant)
            self._positions[partition] = offset + 1
            return
        self._positions[partition] = offset + 1
        key = record["tenant"], record["trace_id"]
        entry = self._open.pop(key, None)
        if entry is None:
            entry = self._published.pop(key, None)
            if entry is None:
                entry = _OpenTrace(
                    Trace(record["trace_id"]),
                    Defaults(record["tenant"], record["consent"], self._agent, record["consent_ceiling"]),
                    (partition, offset),
                )
            entry.position = partition, offset
        entry.defaults = replace(  # the parts may come with several keys of the tenant
            entry.defaults, consent_ceiling=stricter(entry.defaults.consent_ceiling, record["consent_ceiling"])
        )
        self._open[key] = entry
        for span in spans:
            entry.trace.add(span)
        for record_log in logs:
            entry.trace.add_log(record_log)
        entry.bytes += len(record["payload"])
        entry.seen_at = time.monotonic()

    def _publish_settled(self, now: float) -> None:
        options = self._settings.otlp
        open_bytes = sum(entry.bytes for entry in self._open.values())
        for key, entry in list(self._open.items()):  # those without a part for the longest time come first
            wait = options.grace_s if entry.trace.has_root() else options.settle_s
            if now - entry.seen_at < wait and open_bytes <= options.open_mb * 1_000_000:
                continue
            try:
                if reason := self._publish_trace(entry):
                    trace_id, tenant = entry.trace.trace_id.encode(), entry.defaults.tenant
                    self._dead_letter(entry.position, trace_id, entry.bytes, None, "invalid", reason, tenant)
            except Exception as error:  # any failure to publish: keep the trace and retry
                log.warning("trace %s waits, will retry: %s", entry.trace.trace_id, error)
                return
            open_bytes -= entry.bytes
            del self._open[key]
            self._expected.pop(key, None)
            self._published[key] = entry
            if len(self._published) > MAX_PUBLISHED:
                self._published.popitem(last=False)

    def _publish_trace(self, entry: _OpenTrace) -> str:
        """Publish a trace's records; return why some are permanently rejected, or empty text."""
        assert self._publish is not None
        try:
            records = self._assemble(entry.trace, entry.defaults)
        except Exception as error:  # it would block all other traces forever
            log.exception("cannot assemble trace %s", entry.trace.trace_id)
            return f"the trace cannot be assembled: {type(error).__name__}"
        return "; ".join(self._publish(records)) if records else ""

    def _dead_letter(
        self,
        position: tuple[int, int],
        key: bytes,
        size: int,
        digest: str | None,
        error: str,
        reason: str,
        tenant: str | None,
    ) -> None:
        """Publish the dead letter of a part, or of the trace that starts with it; blocks until acknowledged.

        `tenant`: None: the part cannot be read.
        """
        assert self._publish is not None
        partition, offset = position
        log.error("sent %s[%d]@%d to dead-letters: %s", OPEN_TRACES, partition, offset, reason)
        letter = new_dead_letter(
            event_id=derived_id(JOB, "dead-letter", OPEN_TRACES, partition, offset),
            occurred_at_us=now_us(),
            job=JOB,
            topic=OPEN_TRACES,
            partition=partition,
            offset=offset,
            key=key,
            value_bytes=size,
            value_sha256=digest,
            error=error,
            reason=reason,
            tenant=tenant,
        )
        self._publish([AssembledRecord(DEAD_LETTERS, key.decode(errors="replace"), letter)])

    def _commit(self, consumer: Consumer) -> None:
        """Commit each partition up to the first part of an unpublished trace."""
        safe = dict(self._positions)
        for entry in self._open.values():
            partition, offset = entry.position
            safe[partition] = min(safe.get(partition, offset), offset)
        moved = [
            TopicPartition(OPEN_TRACES, p, offset) for p, offset in safe.items() if self._committed.get(p) != offset
        ]
        if moved:
            consumer.commit(offsets=moved, asynchronous=False)
            self._committed |= {position.partition: position.offset for position in moved}

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        log.info("following open traces of %d partitions", len(partitions))

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop_partitions({position.partition for position in partitions})

    def _drop_partitions(self, partitions: set[int]) -> None:
        for table in (self._open, self._published):
            for key in [key for key, entry in table.items() if entry.position[0] in partitions]:
                del table[key]
        for partition in partitions:
            self._positions.pop(partition, None)
            self._committed.pop(partition, None)
