"""Check the schema registry under kills, races and lost brokers."""

import itertools
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import NewTopic
from service_process import ServiceProcess, broker, registry
from stack_fixtures import with_long_deadlines, with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings, load
from stepstream.core.process import Fatal
from stepstream.embedded import install
from stepstream.embedded.addresses import isolated
from stepstream.embedded.ready import HttpReady
from stepstream.services.registry import topic
from stepstream.topics.client import admin_client

pytestmark = pytest.mark.faults


def schema(*names: str) -> str:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    return json.dumps({"type": "record", "name": "R", "fields": fields}, separators=(",", ":"))


def client(service: ServiceProcess) -> httpx.Client:
    return httpx.Client(base_url=service.settings.schema_registry.url, timeout=TIMEOUT_S)


def state(http: httpx.Client) -> dict[str, list[tuple[int, int, str]]]:
    """Return the content of a registry: (version, id, schema) by subject."""
    by_subject: dict[str, list[tuple[int, int, str]]] = {}
    for subject in http.get("/subjects").json():
        versions = http.get(f"/subjects/{subject}/versions").json()
        answers = [http.get(f"/subjects/{subject}/versions/{version}").json() for version in versions]
        by_subject[subject] = [(answer["version"], answer["id"], answer["schema"]) for answer in answers]
    return by_subject


def test_kill_9_keeps_every_acknowledged_schema(broker_settings: Settings, tmp_path: Path) -> None:
    prefix = f"kill-{uuid.uuid4()}"
    acknowledged: dict[str, int] = {}
    with registry(broker_settings, tmp_path / "log") as service:
        for turn in range(2):
            goal = len(acknowledged) + 15

            def register_until_killed(turn: int = turn) -> None:
                with client(service) as http:
                    for number in itertools.count():
                        subject = f"{prefix}-{turn}-{number}"
                        try:
                            answer = http.post(f"/subjects/{subject}/versions", json={"schema": schema(f"f{number}")})
                        except httpx.HTTPError:
                            return
                        if answer.status_code == 200:
                            acknowledged[subject] = answer.json()["id"]

            writer = threading.Thread(target=register_until_killed)
            writer.start()
            wait_until(lambda goal=goal: len(acknowledged) >= goal)  # type: ignore[misc]
            service.kill()
            writer.join()
            service.start()
        with client(service) as http:
            stored = state(http)
    assert len(acknowledged) >= 30
    for subject, schema_id in acknowledged.items():
        number = subject.rpartition("-")[2]
        assert stored[subject] == [(1, schema_id, schema(f"f{number}"))]
    # Equal schemas have equal ids in both turns; different schemas have different ids.
    ids = {subject.rpartition("-")[2]: schema_id for subject, schema_id in acknowledged.items()}
    assert len(set(ids.values())) == len(ids)


def test_two_instances_give_equal_ids(broker_settings: Settings, tmp_path: Path) -> None:
    prefix = f"race-{uuid.uuid4()}"
    with (
        registry(broker_settings, tmp_path / "one") as one,
        registry(broker_settings, tmp_path / "two") as two,
        client(one) as first,
        client(two) as second,
    ):

        def register(job: tuple[httpx.Client, str, str]) -> tuple[str, int]:
            http, subject, text = job
            answer = http.post(f"/subjects/{subject}/versions", json={"schema": text})
            assert answer.status_code == 200, answer.text
            # The other instance knows the schema too.
            other = second if http is first else first
            assert other.get(f"/schemas/ids/{answer.json()['id']}").json()["schema"] == text
            return text, answer.json()["id"]

        # Both get the same requests concurrently: three subjects, each schema a version in each.
        jobs = [
            (http, f"{prefix}-{subject}", schema(f"{prefix[5:9]}x{number}"[4:]))
            for number in range(8)
            for subject in range(3)
            for http in (first, second)
        ]
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(register, jobs))
        ids: dict[str, set[int]] = {}
        for text, schema_id in answers:
            ids.setdefault(text, set()).add(schema_id)
        assert all(len(schema_ids) == 1 for schema_ids in ids.values()), "one schema, one id"
        assert len(set.union(*ids.values())) == len(ids), "one id, one schema"
        wait_until(lambda: state(first) == state(second))
        stored = state(first)
        for subject in range(3):
            versions = stored[f"{prefix}-{subject}"]
            assert [version for version, _, _ in versions] == list(range(1, 9))
            assert {text for _, _, text in versions} == set(ids)


@pytest.fixture
def alone(tmp_path: Path) -> Settings:
    """Settings of a broker for one test, not started."""
    settings = isolated(with_long_deadlines(load({})), tmp_path / "data")
    install.install(settings)
    return with_settings(settings, registry={"write_timeout_s": 2.0})


def test_writes_continue_after_the_broker_restarts(alone: Settings, tmp_path: Path) -> None:
    kafka = broker(alone, tmp_path / "broker")
    service = registry(alone, tmp_path / "registry")
    with ExitStack() as stack:
        service.launch()  # It waits for a broker.
        stack.callback(service.kill)
        wait_until(lambda: "waiting for a Kafka broker" in service.log_text)
        stack.enter_context(kafka)
        wait_until(lambda: service.status is None and reachable(service))
        with client(service) as http:
            # A new broker first creates the topic of transactions, which takes time on a busy machine.
            wait_until(lambda: post(http, "s", schema("a")) == (200, {"id": 1}))
            kafka.kill()
            status, body = post(http, "s", schema("a", "b"))
            assert (status, body["error_code"]) in [(500, 50002), (500, 50003)]
            assert http.get("/subjects/s/versions/latest").json()["id"] == 1
            assert post(http, "s", schema("a")) == (200, {"id": 1})
            assert http.get("/schemas/ids/7").status_code == 404
            kafka.start()
            wait_until(lambda: post(http, "s", schema("a", "b")) == (200, {"id": 2}))
            # The write of unknown outcome took effect at most once.
            assert http.get("/subjects/s/versions").json() == [1, 2]
        service.kill()
        service.start()
        with client(service) as http:
            assert [version for version, _, _ in state(http)["s"]] == [1, 2]
        assert service.stop() == 0


def reachable(service: ServiceProcess) -> bool:
    try:
        return httpx.get(service.settings.schema_registry.url + "/subjects").status_code == 200
    except httpx.HTTPError:
        return False


def post(http: httpx.Client, subject: str, text: str) -> tuple[int, Any]:
    answer = http.post(f"/subjects/{subject}/versions", json={"schema": text})
    return answer.status_code, answer.json()


def test_no_broker_within_the_deadline_is_an_error(alone: Settings, tmp_path: Path) -> None:
    short_deadline = alone.model_copy(update={"kafka": alone.kafka.model_copy(update={"deadline_s": 0.5})})
    service = registry(short_deadline, tmp_path / "log")
    service.launch()
    wait_until(lambda: service.status is not None)
    assert service.status == 1
    last = service.log_text.splitlines()[-1]
    assert "no Kafka broker answers at" in last
    assert "STEPSTREAM_KAFKA_BOOTSTRAP" in last


def test_a_port_in_use_is_an_error(alone: Settings, tmp_path: Path) -> None:
    first = registry(alone, tmp_path / "one")
    first.launch()  # It binds its port while it waits for a broker.
    try:
        wait_until(lambda: "waiting for a Kafka broker" in first.log_text)
        second = ServiceProcess("stepstream.services.registry", first.settings, HttpReady(""), tmp_path / "two")
        second.launch()
        wait_until(lambda: second.status is not None)
        assert second.status == 1
        message = f"{first.settings.registry.port} is in use: set STEPSTREAM_REGISTRY_PORT to a free port"
        assert message in second.log_text.splitlines()[-1]
    finally:
        first.kill()


@pytest.mark.parametrize(
    ("partitions", "policy", "fault"),
    [(1, "delete", "cleanup.policy=delete, so schemas would expire"), (2, "compact", "has 2 partitions")],
)
def test_a_topic_with_wrong_settings_is_an_error(
    broker_settings: Settings, monkeypatch: pytest.MonkeyPatch, partitions: int, policy: str, fault: str
) -> None:
    name = f"schemas-{uuid.uuid4()}"
    monkeypatch.setattr(topic, "TOPIC", name)
    admin = admin_client(broker_settings.kafka)
    wrong = NewTopic(name, partitions, 1, config={"cleanup.policy": policy})
    for future in admin.create_topics([wrong]).values():
        future.result(TIMEOUT_S)
    with pytest.raises(Fatal, match=fault):
        topic.ensure_topic(broker_settings.kafka)
