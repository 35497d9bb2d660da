"""A real gateway process over the session's broker and registry, a scripted worker behind it, and what it recorded."""

import atexit
import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from scripted_upstream import ScriptedUpstream
from service_process import ServiceProcess
from stack_fixtures import changed
from waiting import PATIENCE_S, until

from stepstream.config import SchemaRegistrySettings, Settings
from stepstream.crypto.key_ring import codec_of
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import HttpReady
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer

Recorded = Callable[..., list[dict[str, Any]]]


def gateway_process(settings: Settings, log: Path) -> ServiceProcess:
    """A gateway with exactly these settings."""
    url = f"http://127.0.0.1:{settings.gateway.port}/health"
    return ServiceProcess("stepstream.services.gateway", settings, HttpReady(url), log)


def gateway_settings(settings: Settings, upstream: ScriptedUpstream, **fields: Any) -> Settings:
    """Settings of a gateway on a free port before one worker, and of a fleet that speaks to it."""
    port = free_block(1)
    gateway = {"port": port, "upstreams": [upstream.url], "upstream_deadline_s": PATIENCE_S} | fields
    return changed(settings, gateway=gateway, fleet={"gateway_url": f"http://127.0.0.1:{port}"})


@cache
def codec(registry_url: str) -> Codec:
    """One for all reads: each holds a connection."""
    made = Codec(SchemaRegistrySettings(url=registry_url))
    atexit.register(made.close)
    return made


_opening: dict[tuple[str, Path], Codec] = {}


def opening_codec(settings: Settings) -> Codec:
    """One for all reads of a stack's records of persons, whose seals it opens."""
    key = settings.schema_registry.url, settings.paths.data
    if key not in _opening:
        _opening[key] = codec_of(settings, make_master=False)
        atexit.register(_opening[key].close)
    return _opening[key]


def read_topic(settings: Settings, topic: str, trajectory_id: str, count: int) -> list[Any]:
    """The events of one trajectory, at least `count`, waiting for them."""
    found: list[Any] = []

    def there() -> bool:
        found.clear()
        # A broker that has just come back may not lead its partitions yet.
        with (
            contextlib.suppress(KafkaException),
            EventConsumer(settings.kafka, opening_codec(settings)) as consumer,
        ):
            consumer.follow([topic])
            while not consumer.caught_up():
                found.extend(event.record for event in consumer.poll(1000, 0.1) if event.key == trajectory_id)
        return len(found) >= count

    until(there, lambda: f"{len(found)} of {count} events of {trajectory_id} on {topic}")
    return found


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    """The worker behind the gateway."""
    with ScriptedUpstream() as worker:
        yield worker


@pytest.fixture(scope="module")
def gateway_fields() -> dict[str, Any]:
    """More settings of the module's gateway; a module that wants some has a fixture of its own by this name."""
    return {}


@pytest.fixture(scope="module")
def gateway(
    registry_settings: Settings,
    upstream: ScriptedUpstream,
    gateway_fields: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServiceProcess]:
    """A running gateway."""
    settings = gateway_settings(registry_settings, upstream, **gateway_fields)
    with gateway_process(settings, tmp_path_factory.mktemp("gateway") / "gateway.log") as process:
        yield process


@pytest.fixture
def recorded(gateway: ServiceProcess) -> Recorded:
    """`recorded(topic, trajectory_id, count)`: the events, once there are that many."""
    return lambda topic, trajectory_id, count=1: read_topic(gateway.settings, topic, trajectory_id, count)
