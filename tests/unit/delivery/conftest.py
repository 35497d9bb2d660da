"""Start spooled producers against a scripted Kafka."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_kafka import OutcomeCounts, ScriptedKafka, ScriptedRegistry

from stepstream.config import KafkaSettings
from stepstream.delivery import sender, spooled_producer
from stepstream.delivery.spooled_producer import SpooledProducer
from stepstream.delivery.types import BacklogLimits

MB = 1024 * 1024


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> ScriptedKafka:
    kafka = ScriptedKafka()
    monkeypatch.setattr(sender, "EventProducer", kafka.producer)
    monkeypatch.setattr(spooled_producer, "POLL_S", 0.002)
    monkeypatch.setattr(spooled_producer, "RETRY_S", 0.01)
    return kafka


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    codec = ScriptedRegistry()
    yield codec
    codec.close()


@pytest.fixture
def start(
    kafka: ScriptedKafka, registry: ScriptedRegistry, tmp_path: Path
) -> Iterator[Callable[..., tuple[SpooledProducer, OutcomeCounts]]]:
    """Starts a producer; its first argument is the spool's folder, the others are fields of `BacklogLimits`."""
    producers = []

    def start(folder: Path | None = tmp_path / "spool", **limits: Any) -> tuple[SpooledProducer, OutcomeCounts]:
        counts = OutcomeCounts()
        fields = {"spool_bytes": MB, "memory_bytes": MB} | limits
        producers.append(
            SpooledProducer(KafkaSettings(), lambda _: registry, "test/1", counts, BacklogLimits(folder, **fields))
        )
        return producers[-1], counts

    yield start
    for producer in producers:
        producer.close(0)
