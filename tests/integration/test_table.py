"""Test tables that follow compacted topics, with a real broker and registry."""

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import OFFSET_END, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import KafkaSettings, Settings
from stepstream.embedded.ports import free_block
from stepstream.topics.catalogue import WORKER_STATUS
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Consent, new_consent_change, new_worker_status
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer
from stepstream.topics.table import Table
from stepstream.topics.table_metrics import FAULTY


@pytest.fixture
def tenant() -> str:
    return uuid.uuid4().hex


class Writer:
    """Writes consents as the command line does, and tombstones."""

    def __init__(self, settings: Settings) -> None:
        self._codec = Codec(settings)
        self._producer = EventProducer(settings.kafka, self._codec, "test")
        self._plain = Producer(client_config(settings.kafka))

    def put(self, tenant: str, consent: Consent) -> None:
        change = new_consent_change(event_id=new_event_id(), occurred_at_us=now_us(), tenant=tenant, consent=consent)
        self._producer.send("consents", tenant, change)
        self._producer.flush(TIMEOUT_S)

    def delete(self, tenant: str) -> None:
        self.put_bytes(tenant, None)

    def put_bytes(self, tenant: str, value: bytes | None) -> None:
        self._plain.produce("consents", key=tenant.encode(), value=value)
        assert self._plain.flush(TIMEOUT_S) == 0


@pytest.fixture
def writer(registry_settings: Settings) -> Iterator[Writer]:
    made = Writer(registry_settings)
    yield made
    made._codec.close()


def test_a_table_has_earlier_and_later_records(registry_settings: Settings, writer: Writer, tenant: str) -> None:
    writer.put(tenant, "train")
    writer.put(tenant, "analyse")
    with Table(registry_settings, "consents") as table:
        assert table.wait_current(20)
        assert table.get(tenant)["consent"] == "analyse"
        changes: list[object] = []
        table.on_change(lambda key, record: changes.append((key, record and record["consent"])))
        writer.put(tenant, "none")
        assert table.wait_current(20)
        assert table.items()[tenant]["consent"] == "none"
        writer.delete(tenant)
        wait_until(lambda: table.get(tenant) is None)
        assert changes == [(tenant, "none"), (tenant, None)]


def put_status(settings: Settings, codec: Codec, worker: str) -> None:
    status = new_worker_status(
        event_id=new_event_id(), occurred_at_us=1, worker_id=worker, engine="torch", url="", model=worker,
        state="stopping",
    )  # fmt: skip
    producer = EventProducer(settings.kafka, codec, "test")
    producer.send(WORKER_STATUS, worker, status)
    producer.flush(TIMEOUT_S)


def test_a_table_knows_when_the_broker_wrote_a_record(registry_settings: Settings, tenant: str) -> None:
    before_us = now_us()
    with closing(Codec(registry_settings)) as codec, Table(registry_settings, WORKER_STATUS) as table:
        put_status(registry_settings, codec, tenant)
        assert table.wait_current(20)
        written_us = table.written_us(tenant)
        assert written_us is not None
        assert before_us - 1000 <= written_us <= now_us()
        assert table.written_us("never") is None


def test_readers_get_by_without_the_statuses_that_kafka_deleted(registry_settings: Settings, tenant: str) -> None:
    kafka = registry_settings.kafka
    with closing(Codec(registry_settings)) as codec, ExitStack() as stack:
        put_status(registry_settings, codec, tenant)
        early = stack.enter_context(Table(registry_settings, WORKER_STATUS))
        assert early.wait_current(20)
        assert early.get(tenant) is not None
        # As when the retention of the topic has passed for all statuses.
        place = TopicPartition(kafka.prefix + WORKER_STATUS, 0, OFFSET_END)
        admin = AdminClient(client_config(kafka))
        for future in admin.delete_records([place]).values():
            future.result(TIMEOUT_S)
        table = stack.enter_context(Table(registry_settings, WORKER_STATUS))
        assert table.wait_current(20)
        assert table.items() == {}
        consumer = stack.enter_context(EventConsumer(kafka, codec))
        consumer.follow([WORKER_STATUS])
        assert consumer.is_caught_up()
        put_status(registry_settings, codec, f"{tenant}-next")
        for reader in (early, table):
            assert reader.wait_current(20)
            assert reader.get(f"{tenant}-next") is not None
        wait_until(lambda: [event.key for event in consumer.poll(10, 0.1)] == [f"{tenant}-next"])


class SilentConsumer(Consumer):
    """A consumer that gets no records any more, once it is silenced."""

    silenced: ClassVar[list[Consumer]] = []

    def poll(self, timeout: float = -1) -> Message | None:
        if self not in self.silenced:
            return super().poll(timeout)
        time.sleep(min(timeout, 0.05))
        return None


def test_a_consumer_without_progress_is_replaced(
    registry_settings: Settings, writer: Writer, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Consumer] = []

    def make(kafka: KafkaSettings, config: dict[str, Any]) -> Consumer:
        made.append(SilentConsumer(client_config(kafka) | config))
        return made[-1]

    monkeypatch.setattr("stepstream.topics.client.consumer", make)
    monkeypatch.setattr("stepstream.topics.table._STALL_S", 3)
    writer.put(tenant, "train")
    with Table(registry_settings, "consents") as table:
        assert table.wait_current(20)
        SilentConsumer.silenced.extend(made)
        consents: tuple[Consent, ...] = ("analyse", "none")
        for consent in consents:  # the first may still arrive, in the call that has begun
            writer.put(tenant, consent)
            assert table.wait_current(TIMEOUT_S)
            assert table.get(tenant)["consent"] == consent
    assert len(made) > len(SilentConsumer.silenced)


def test_a_rejected_record_leaves_the_previous_one(registry_settings: Settings, writer: Writer, tenant: str) -> None:
    writer.put(tenant, "train")
    writer.put(tenant, "none")
    rejections = {"none": "not this one"}
    with Table(registry_settings, "consents", rejection_of=lambda record: rejections.get(record["consent"])) as table:
        assert table.wait_current(20)
        assert table.get(tenant)["consent"] == "train"
        writer.put(tenant, "analyse")
        wait_until(lambda: table.get(tenant)["consent"] == "analyse")


def test_a_snapshot_serves_without_kafka(
    registry_settings: Settings, writer: Writer, tenant: str, tmp_path: Path
) -> None:
    snapshot = tmp_path / "keys" / "consents.json"
    writer.put(tenant, "train")
    with Table(registry_settings, "consents", snapshot=snapshot) as table:
        assert table.wait_current(20)
        wait_until(snapshot.exists)
    unreachable = with_settings(registry_settings, kafka={"bootstrap": f"127.0.0.1:{free_block(1)}"})
    with Table(unreachable, "consents", snapshot=snapshot) as table:
        assert table.get(tenant)["consent"] == "train"
        assert not table.current
        assert not table.wait_current(0.05)
    assert snapshot.stat().st_mode & 0o077 == 0


def test_records_deleted_meanwhile_leave_the_snapshot(
    registry_settings: Settings, writer: Writer, tenant: str, tmp_path: Path
) -> None:
    snapshot = tmp_path / "consents.json"
    writer.put(tenant, "train")
    with Table(registry_settings, "consents", snapshot=snapshot) as table:
        assert table.wait_current(20)
        wait_until(snapshot.exists)
    writer.delete(tenant)
    with Table(registry_settings, "consents", snapshot=snapshot) as table:
        assert table.wait_current(20)
        assert table.get(tenant) is None
        wait_until(lambda: tenant.encode() not in snapshot.read_bytes())


def test_a_damaged_snapshot_is_ignored(registry_settings: Settings, tmp_path: Path) -> None:
    snapshot = tmp_path / "consents.json"
    snapshot.write_bytes(b"{half a file")
    with Table(registry_settings, "consents", snapshot=snapshot) as table:
        assert table.wait_current(20)


def fault_of(table: Table) -> str | None:
    return table.fault


def test_an_unreadable_record_is_a_fault_until_its_key_is_written_again(
    registry_settings: Settings, writer: Writer, tenant: str
) -> None:
    writer.put(tenant, "train")
    with Table(registry_settings, "consents") as table:
        assert table.wait_current(20)
        assert fault_of(table) is None
        writer.put_bytes(tenant, b"\0\xff\xff\xff\x00")
        assert table.wait_current(20)
        assert "no schema" in str(fault_of(table))
        assert FAULTY.labels("consents")._value.get() == 1
        assert table.get(tenant)["consent"] == "train", "the row stays, and the fault says that it may be older"
        writer.put(tenant, "none")
        assert table.wait_current(20)
        assert (fault_of(table), table.get(tenant)["consent"]) == (None, "none")
        assert FAULTY.labels("consents")._value.get() == 0


def test_a_callback_that_raises_does_not_end_the_table(
    registry_settings: Settings, writer: Writer, tenant: str
) -> None:
    broken = True

    def callback(key: str, record: object) -> None:
        if broken and key == tenant:
            raise RuntimeError("not now")

    with Table(registry_settings, "consents", on_change=callback) as table:
        assert table.wait_current(20)
        writer.put(tenant, "none")
        wait_until(lambda: fault_of(table) is not None)
        assert not table.current
        assert "not now" in str(fault_of(table))
        broken = False
        assert table.wait_current(20)
        assert (fault_of(table), table.get(tenant)["consent"]) == (None, "none")
