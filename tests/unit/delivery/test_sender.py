"""Spooled records of older schemas are sent under their own schema, translated, or rejected."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sample_records import feedback, step
from scripted_kafka import OutcomeCounts, ScriptedKafka, ScriptedRegistry
from waiting import TIMEOUT_S, wait_until

from stepstream.config import KafkaSettings
from stepstream.delivery.sender import tenant_of
from stepstream.delivery.spool import Spool
from stepstream.delivery.spooled_producer import SpooledProducer, UndeliveredEvents
from stepstream.delivery.types import BacklogLimits, SpoolRecord
from stepstream.schemas import schema_text
from stepstream.topics.catalogue import SUBJECT_KEYS
from stepstream.topics.codec import Codec, KeysUnavailable
from stepstream.topics.events import SubjectKey, new_subject_key

MB = 1024 * 1024
CURRENT = schema_text("Feedback")
OLDER = CURRENT + " "


def fill_spool(folder: Path, *records: tuple[str, str, bytes]) -> None:
    """Spool feedback: event id, schema and body of each record."""
    spool = Spool(folder / "spool", MB, lambda _: None)
    for event_id, schema, body in records:
        spool.append(SpoolRecord("feedback", "t", event_id, 1, None, schema, body))
    spool.close()


def test_the_tenant_of_a_record_is_read_without_the_rest(registry: ScriptedRegistry) -> None:
    body = registry.body("feedback", feedback("f", tenant="acme"))
    assert tenant_of(CURRENT, body) == "acme"
    assert tenant_of(CURRENT, body[:60]) == "acme"
    assert tenant_of(CURRENT, b"\xff") is None
    assert tenant_of(schema_text("KeyUsage"), body) is None
    assert tenant_of("no schema", body) is None


def test_a_record_of_a_registered_older_schema_is_sent_unchanged(
    kafka: ScriptedKafka, registry: ScriptedRegistry, start: Any, tmp_path: Path
) -> None:
    bodies = [registry.body("feedback", feedback(event_id)) for event_id in ("f0", "f1")]
    fill_spool(tmp_path, ("f0", OLDER, bodies[0]), ("f1", CURRENT, bodies[1]))
    start()
    wait_until(lambda: len(kafka.ids("feedback")) == 2)
    assert kafka.values["f0"][:5] == b"\0\0\0\0\2"
    assert kafka.values["f1"][:5] == b"\0\0\0\0\1"


def test_a_record_of_an_unregistered_schema_is_translated(
    kafka: ScriptedKafka, registry: ScriptedRegistry, start: Any, tmp_path: Path
) -> None:
    registry.unregistered.add(OLDER)
    body = registry.body("feedback", feedback("f"))
    fill_spool(tmp_path, ("f", OLDER, body))
    start()
    wait_until(lambda: kafka.ids("feedback") == ["f"])
    assert kafka.values["f"] == b"\0\0\0\0\1" + body


def test_a_record_that_cannot_be_translated_is_rejected_and_skipped(
    kafka: ScriptedKafka, registry: ScriptedRegistry, start: Any, tmp_path: Path
) -> None:
    registry.unregistered.add(OLDER)
    fill_spool(tmp_path, ("0", OLDER, b"\xff"), ("1", OLDER, registry.body("feedback", feedback("1"))))
    producer, counts = start()
    wait_until(lambda: kafka.ids("feedback") == ["1"])
    assert producer.flush(TIMEOUT_S) == 0
    assert counts.rejected == 1
    assert producer.close(5) == UndeliveredEvents(0, 0)


class SlowKeys:
    """Seals nothing. `open` waits for `release`; `seal` takes a lock that the creator of a key holds."""

    def __init__(self) -> None:
        self.send_key: Callable[[SubjectKey], bool] = lambda _: True
        self.ring = threading.RLock()
        self.is_opening, self.release = threading.Event(), threading.Event()

    def seal(self, topic: str, record: Any) -> Any:
        if not self.ring.acquire(timeout=TIMEOUT_S):
            raise KeysUnavailable("another thread has the key ring")
        try:
            fields = {"occurred_at_us": 1, "key_id": "k", "tenant": "t", "subject": "s", "wrapped_key": b"w"}
            self.send_key(new_subject_key(event_id=f"key-{record['event_id']}", **fields))  # type: ignore[arg-type]
        finally:
            self.ring.release()
        return record

    def open(self, topic: str, writer: Any, record: Any) -> Any:
        self.is_opening.set()
        if not self.release.wait(TIMEOUT_S):
            raise KeysUnavailable("no key in time")
        return record

    def move_out(self, topic: str, record: Any) -> Any:
        return record

    def close(self) -> None:
        pass


def call_without_blocking(call: Callable[[], object]) -> None:
    """Call it in another thread; it must return before the timeouts of `SlowKeys`."""
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(TIMEOUT_S)
    assert not caller.is_alive(), "delivery blocks its caller until a key is available"


def test_translation_that_waits_for_a_key_blocks_no_caller(kafka: ScriptedKafka, tmp_path: Path) -> None:
    keys = SlowKeys()
    registry = ScriptedRegistry(keys)
    registry.unregistered.add(OLDER)
    sealed = registry.body("feedback", feedback("f", user="ada", seal_key="k", sealed=b"s"))
    fill_spool(tmp_path, ("f", OLDER, sealed))

    def make_codec(send_key: Callable[[SubjectKey], bool]) -> Codec:
        keys.send_key = send_key
        return registry

    limits = BacklogLimits(tmp_path / "spool", MB, MB)
    producer = SpooledProducer(KafkaSettings(), make_codec, "test/1", OutcomeCounts(), limits)

    def send_with_the_ring() -> None:
        with keys.ring:  # as the creator of a key does; the translation needs the ring at the same time
            keys.release.set()
            producer.send("steps", "t", step(event_id="1", user="bob"))

    try:
        assert keys.is_opening.wait(TIMEOUT_S)
        call_without_blocking(lambda: producer.send("steps", "t", step(event_id="0")))
        call_without_blocking(send_with_the_ring)
        assert producer.flush(TIMEOUT_S) == 0
    finally:
        keys.release.set()
        call_without_blocking(lambda: producer.close(2))
    assert kafka.ids("feedback") == ["f"]
    assert kafka.log.index((SUBJECT_KEYS, "key-f")) < kafka.log.index(("feedback", "f"))
    assert kafka.log.index((SUBJECT_KEYS, "key-1")) < kafka.log.index(("steps", "1"))
    assert kafka.ids() == ["0", "1"]
