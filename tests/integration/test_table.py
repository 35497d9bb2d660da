"""Tables followed from compacted topics, on a real broker and registry."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from stack_fixtures import changed
from waiting import PATIENCE_S, until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.events import Consent, new_consent_change
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer
from stepstream.topics.table import Table


@pytest.fixture
def tenant() -> str:
    return uuid.uuid4().hex


class Writer:
    """Writes consents as the command line does, and tombstones."""

    def __init__(self, settings: Settings) -> None:
        self._codec = Codec(settings.schema_registry)
        self._producer = EventProducer(settings.kafka, self._codec, "test")
        self._plain = Producer(client_config(settings.kafka))

    def put(self, tenant: str, consent: Consent) -> None:
        change = new_consent_change(event_id=new_event_id(), occurred_at_us=now_us(), tenant=tenant, consent=consent)
        self._producer.send("consents", tenant, change)
        self._producer.flush(PATIENCE_S)

    def delete(self, tenant: str) -> None:
        self._plain.produce("consents", key=tenant.encode(), value=None)
        assert self._plain.flush(PATIENCE_S) == 0


@pytest.fixture
def writer(registry_settings: Settings) -> Iterator[Writer]:
    made = Writer(registry_settings)
    yield made
    made._codec.close()


def test_it_knows_what_was_there_before_and_what_comes(
    registry_settings: Settings, writer: Writer, tenant: str
) -> None:
    writer.put(tenant, "train")
    writer.put(tenant, "analyse")
    with Table(registry_settings, "consents") as table:
        assert table.wait_current(20)
        assert table.get(tenant)["consent"] == "analyse"
        told: list[object] = []
        table.on_change(lambda key, record: told.append((key, record and record["consent"])))
        writer.put(tenant, "none")
        assert table.wait_current(20)
        assert table.items()[tenant]["consent"] == "none"
        writer.delete(tenant)
        until(lambda: table.get(tenant) is None)
        assert told == [(tenant, "none"), (tenant, None)]


def test_what_is_refused_leaves_what_was_there(registry_settings: Settings, writer: Writer, tenant: str) -> None:
    writer.put(tenant, "train")
    writer.put(tenant, "none")
    dead_letter = {"none": "not this one"}
    with Table(registry_settings, "consents", refused=lambda record: dead_letter.get(record["consent"])) as table:
        assert table.wait_current(20)
        assert table.get(tenant)["consent"] == "train"
        writer.put(tenant, "analyse")
        until(lambda: table.get(tenant)["consent"] == "analyse")


def test_a_snapshot_serves_while_kafka_is_away(
    registry_settings: Settings, writer: Writer, tenant: str, tmp_path: Path
) -> None:
    snapshot = tmp_path / "keys" / "consents.json"
    writer.put(tenant, "train")
    with Table(registry_settings, "consents", snapshot=snapshot) as table:
        assert table.wait_current(20)
        until(snapshot.exists)
    nowhere = changed(registry_settings, kafka={"bootstrap": f"127.0.0.1:{free_block(1)}"})
    with Table(nowhere, "consents", snapshot=snapshot) as table:
        assert table.get(tenant)["consent"] == "train"
        assert not table.current
        assert not table.wait_current(0.05)
    assert snapshot.stat().st_mode & 0o077 == 0


def test_what_was_deleted_meanwhile_leaves_the_snapshot(
    registry_settings: Settings, writer: Writer, tenant: str, tmp_path: Path
) -> None:
    snapshot = tmp_path / "consents.json"
    writer.put(tenant, "train")
    with Table(registry_settings, "consents", snapshot=snapshot) as table:
        assert table.wait_current(20)
        until(snapshot.exists)
    writer.delete(tenant)
    with Table(registry_settings, "consents", snapshot=snapshot) as table:
        assert table.wait_current(20)
        assert table.get(tenant) is None
        until(lambda: tenant.encode() not in snapshot.read_bytes())


def test_a_damaged_snapshot_is_as_good_as_none(registry_settings: Settings, tmp_path: Path) -> None:
    snapshot = tmp_path / "consents.json"
    snapshot.write_bytes(b"{half a file")
    with Table(registry_settings, "consents", snapshot=snapshot) as table:
        assert table.wait_current(20)
