"""Provide a gateway process with a scripted worker, on the session's broker and registry, and read its events."""

import atexit
import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from log_reading import read_to_end
from scripted_upstream import ScriptedUpstream
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.cli import compacted_topics
from stepstream.config import SchemaRegistrySettings, Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import HttpReady
from stepstream.services.gateway.api_keys import new_key
from stepstream.topics.catalogue import API_KEYS
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_api_key
from stepstream.topics.ids import new_event_id, now_us

Recorded = Callable[..., list[dict[str, Any]]]


def gateway_process(settings: Settings, log: Path) -> ServiceProcess:
    """Return a gateway process with exactly these settings."""
    url = f"http://127.0.0.1:{settings.gateway.port}/health"
    return ServiceProcess("stepstream.services.gateway", settings, HttpReady(url), log)


def gateway_settings(settings: Settings, upstream: ScriptedUpstream, **fields: Any) -> Settings:
    """Return settings of a gateway on a free port with one worker, and of a fleet that calls it."""
    port = free_block(1)
    # Workers of other tests announce themselves on the shared broker.
    gateway = {"port": port, "upstreams": [upstream.url], "find_workers": False, "upstream_deadline_s": TIMEOUT_S}
    return with_settings(settings, gateway=gateway | fields, fleet={"gateway_url": f"http://127.0.0.1:{port}"})


def write_key(settings: Settings, **fields: Any) -> str:
    """Publish an API key of scope `calls` for every model, but for `fields`, and return it."""
    key_id, key, digest = new_key()
    values = {"tenant": "acme", "scopes": ["calls"], "models": ["*"], "consent": "train"} | fields
    record = new_api_key(event_id=new_event_id(), occurred_at_us=now_us(), key_id=key_id, digest=digest, **values)
    compacted_topics.write(settings, API_KEYS, key_id, record)
    return key


@cache
def codec(registry_url: str) -> Codec:
    """Return the codec shared by all reads of a registry, since each codec holds a connection."""
    shared = Codec(Settings(schema_registry=SchemaRegistrySettings(url=registry_url)))
    atexit.register(shared.close)
    return shared


_opening_codecs: dict[tuple[str, Path], Codec] = {}


def opening_codec(settings: Settings) -> Codec:
    """Return the codec shared by all reads of a stack's sealed records."""
    key = settings.schema_registry.url, settings.paths.data
    if key not in _opening_codecs:
        _opening_codecs[key] = sealing_codec(settings, make_master=False)
        atexit.register(_opening_codecs[key].close)
    return _opening_codecs[key]


def read_topic(settings: Settings, topic: str, trajectory_id: str, count: int) -> list[Any]:
    """Wait until a topic has `count` events of a trajectory, and return all of them, each once.

    A gateway that is killed between Kafka's acknowledgement and its spool's mark sends an event again.
    """
    events: dict[str, Any] = {}

    def has_all() -> bool:
        events.clear()
        with contextlib.suppress(KafkaException):  # a restarted broker may not lead its partitions yet
            for event in read_to_end(settings, opening_codec(settings), topic):
                if event.key == trajectory_id:
                    events.setdefault(event.record["event_id"], event.record)
        return len(events) >= count

    wait_until(has_all, lambda: f"{len(events)} of {count} events of {trajectory_id} on {topic}")
    return list(events.values())


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    """The gateway's only worker."""
    with ScriptedUpstream() as worker:
        yield worker


@pytest.fixture(scope="module")
def gateway_fields() -> dict[str, Any]:
    """Additional settings of the gateway; a module overrides this fixture to change them."""
    return {}


@pytest.fixture(scope="module")
def gateway(
    registry_settings: Settings,
    upstream: ScriptedUpstream,
    gateway_fields: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServiceProcess]:
    """A running gateway, shared by the tests of a module."""
    settings = gateway_settings(registry_settings, upstream, **gateway_fields)
    with gateway_process(settings, tmp_path_factory.mktemp("gateway") / "gateway.log") as process:
        yield process


@pytest.fixture
def recorded(gateway: ServiceProcess) -> Recorded:
    """`recorded(topic, trajectory_id, count)` waits for `count` events and returns them."""
    return lambda topic, trajectory_id, count=1: read_topic(gateway.settings, topic, trajectory_id, count)
