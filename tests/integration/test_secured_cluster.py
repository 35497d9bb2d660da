"""A cluster with TLS, users and an authorizer: every client connects, every program works, and nobody does more."""

import asyncio
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiokafka
import orjson
import pytest
from certificates import Authority
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth
from pydantic import SecretStr
from sample_records import SAMPLES
from secured_kafka import PLAIN_USER, SecuredKafka
from service_process import ServiceProcess
from stack_fixtures import with_settings
from stack_world import World
from tls_front import TlsFront
from waiting import TIMEOUT_S, wait_until

from stepstream.cli import doctor_services
from stepstream.config import KafkaSettings, Settings, SettingsError, variable
from stepstream.config.secrets import store_credentials
from stepstream.crypto.key_ring import sealing_codec
from stepstream.embedded import stack as embedded_stack
from stepstream.embedded.addresses import isolated
from stepstream.embedded.processes import Part, Process
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect
from stepstream.jobs.runtime.faust_app import credentials
from stepstream.learner.publish import owner_id
from stepstream.topics.access import AccessDenied
from stepstream.topics.acl_formats import user_of
from stepstream.topics.acls import OPERATOR, PROGRAMS, Acl, acls_of
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.exclusive_producer import ExclusiveProducer
from stepstream.topics.producer import EventProducer
from stepstream.topics.table import Table

LETTERS = "letters"
USERS = {
    "scram": "User:writer",
    "plain": f"User:{PLAIN_USER}",
    "token": "User:token-client",
    "certificate": "User:CN=certified",
    "encrypted key": "User:CN=encrypted",
}


@pytest.fixture(scope="module")
def kafka(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(base_settings, tmp_path_factory.mktemp("secured")) as kafka:
        kafka.add_users("writer", *(user_of(program, "") for program in PROGRAMS))
        yield kafka


@pytest.fixture(scope="module")
def letters(kafka: SecuredKafka) -> None:
    kafka.admin.create_topics([NewTopic(LETTERS, 1, 1)])[LETTERS].result(TIMEOUT_S)
    for principal in USERS.values():
        kafka.grant(principal, Acl("topic", LETTERS, False, ("Read", "Write")), Acl("group", "read-", True, ("Read",)))


def connection(kafka: SecuredKafka, way: str) -> KafkaSettings:
    ways: dict[str, Callable[[], KafkaSettings]] = {
        "scram": lambda: kafka.scram("writer"),
        "plain": kafka.plain,
        "token": lambda: kafka.token("token-client"),
        "certificate": lambda: kafka.certificate("certified"),
        "encrypted key": lambda: kafka.certificate("encrypted", "of the key"),
    }
    return ways[way]()


def send(settings: KafkaSettings, topic: str, value: bytes, **config: Any) -> str:
    """Send a record; return the broker's error, empty: none."""
    errors: list[str] = []
    producer = Producer(client_config(settings) | config)
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error.name() if error else ""))
    assert producer.flush(TIMEOUT_S) == 0
    return errors[0]


async def values_read_by_aiokafka(settings: KafkaSettings, group: str, count: int) -> list[bytes | None]:
    """Read as a job does: with the credentials that Faust gives to aiokafka."""
    consumer = aiokafka.AIOKafkaConsumer(
        LETTERS,
        bootstrap_servers=settings.brokers,
        group_id=group,
        auto_offset_reset="earliest",
        **credentials_to_aiokafka_auth(credentials(settings)),
    )
    await consumer.start()
    try:
        return [(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value for _ in range(count)]
    finally:
        await consumer.stop()


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("way", USERS)
def test_both_client_libraries_connect_by_the_same_settings(kafka: SecuredKafka, way: str) -> None:
    settings = connection(kafka, way)
    assert LETTERS in AdminClient(client_config(settings)).list_topics(timeout=TIMEOUT_S).topics
    assert send(settings, LETTERS, way.encode()) == ""
    consumer = Consumer(client_config(settings) | {"group.id": f"read-{way}", "auto.offset.reset": "earliest"})
    consumer.subscribe([LETTERS])
    values: list[bytes | None] = []

    def reads_its_own() -> bool:
        values.extend(message.value() for message in consumer.consume(100, 0.2))
        return way.encode() in values

    wait_until(reads_its_own)
    consumer.close()
    assert asyncio.run(values_read_by_aiokafka(settings, f"read-aio-{way}", len(values))) == values


def test_a_broker_of_another_authority_is_not_trusted(kafka: SecuredKafka, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    settings = kafka.scram("writer").model_copy(update={"ssl_ca_location": str(other.file)})
    with pytest.raises(KafkaException):
        AdminClient(client_config(settings) | {"log_level": 0}).list_topics(timeout=2)
    with pytest.raises(SettingsError, match=r"kafka\.ssl_ca_location .*missing\.pem cannot be read"):
        credentials(settings.model_copy(update={"ssl_ca_location": str(tmp_path / "missing.pem")}))


def of_program(settings: Settings, kafka: SecuredKafka, program: str) -> Settings:
    return settings.model_copy(update={"kafka": kafka.scram(user_of(program, ""))})


PROGRAM_OF = {"store-writer": "store"}


@pytest.fixture(scope="module")
def stack(kafka: SecuredKafka, base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All jobs, registry, gateway and console, each under its own user; topics are applied by the operator."""
    for program in PROGRAMS:
        kafka.grant(f"User:{user_of(program, '')}", *acls_of(program))
    wanted = of_program(isolated(base_settings, tmp_path_factory.mktemp("programs")), kafka, OPERATOR)
    verifications = tmp_path_factory.mktemp("verify") / "verify.toml"
    verifications.write_text('[[verification]]\nname = "answer"\nverifier = "exact"\nexpected = "tasks.jsonl"\n')
    verifications.with_name("tasks.jsonl").write_bytes(orjson.dumps({"task_id": "four", "expected": "4"}))
    wanted = with_settings(
        wanted,
        topics={"partitions": 1},
        stack={"more": ["curate", "verify"]},
        verify={"file": verifications},
    )

    def parts_under_their_users(settings: Settings) -> list[Part]:
        return [
            replace(
                part,
                environment=part.environment
                | {variable("kafka", "sasl_username"): user_of(PROGRAM_OF.get(part.name, part.name), "")},
            )
            if isinstance(part, Process)
            else part
            for part in stack_parts(settings)
        ]

    stack_parts = embedded_stack.stack_parts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded_stack, "stack_parts", parts_under_their_users)
        names = ["govern", "label", "measure", "watch", "store-writer", "curate", "verify", "gateway", "console"]
        with Stack(wanted, ["broker", "registry", "store", *names]) as stack:
            yield stack


def test_every_program_does_its_work_under_its_own_user(stack: Stack, kafka: SecuredKafka) -> None:
    settings = stack.settings
    body = orjson.dumps({"trajectory_id": "one", "name": "thumbs", "value": 1.0})
    request = urllib.request.Request(
        f"http://127.0.0.1:{settings.gateway.port}/v1/feedback", body, {"Content-Type": "application/json"}
    )
    with World(of_program(settings, kafka, "sdk")) as agent:
        agent.send_trajectories("one", "two", task_id="four")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        assert response.status in (200, 202)
    with World(settings) as operator:
        operator.wait_for_value("SELECT count() FROM trajectories FINAL WHERE success", 2)
        wait_until(lambda: {"thumbs", "answer"} <= {one["name"] for one in operator.records("governed-feedback")})
        wait_until(lambda: operator.records("trajectory-stats"))


def test_the_learner_and_a_worker_do_their_work_under_their_own_users(stack: Stack, kafka: SecuredKafka) -> None:
    learner, worker = (of_program(stack.settings, kafka, name) for name in ("learner", "inference"))
    with closing(sealing_codec(learner)) as codec, EventConsumer(learner.kafka, codec) as labels:
        labels.follow(["labeled-trajectories"])
        wait_until(lambda: labels.poll(100, 0.2))
        owner = ExclusiveProducer(learner.kafka, codec, "test", owner_id("demo"), lambda: False)
        owner.take_over()
        owner.send("checkpoints", "demo@1", SAMPLES["checkpoints"])
        owner.flush()
    with closing(Codec(worker)) as codec, Table(worker, "checkpoints") as versions:
        wait_until(lambda: list(versions.items()) == ["demo@1"])
        producer = EventProducer(worker.kafka, codec, "test")
        producer.send("worker-status", "w", SAMPLES["worker-status"])
        producer.flush()


def refused(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises."""
    with pytest.raises(KafkaException) as raised:
        call()
    return str(raised.value.args[0].name())


def first_error(settings: KafkaSettings, topic: str, group: str) -> str:
    """Subscribe to a topic in a group, and return the name of the first error."""
    consumer = Consumer(client_config(settings) | {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    errors: list[str] = []

    def has_error() -> bool:
        found = [message.error() for message in consumer.consume(1, 0.2)]
        errors.extend(error.name() for error in found if error is not None)
        return bool(errors)

    wait_until(has_error)
    consumer.close()
    return errors[0]


@pytest.mark.usefixtures("stack")
def test_a_thief_with_the_password_of_label_reads_no_raw_steps_and_publishes_no_version(kafka: SecuredKafka) -> None:
    thief = kafka.scram(user_of("label", ""))
    assert first_error(thief, "steps", "stepstream-label") == "TOPIC_AUTHORIZATION_FAILED"
    assert first_error(thief, "governed-steps", "stepstream-govern") == "GROUP_AUTHORIZATION_FAILED"
    for topic in ("checkpoints", "governed-steps", "policies", "api-keys"):
        assert send(thief, topic, b"x") == "TOPIC_AUTHORIZATION_FAILED"
    assert send(thief, "stepstream-owned-topics", b"x") == "TOPIC_AUTHORIZATION_FAILED"
    owner = Producer(client_config(thief) | {"transactional.id": owner_id("demo")})
    assert refused(lambda: owner.init_transactions(TIMEOUT_S)) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    thieves_admin = AdminClient(client_config(thief))
    new = thieves_admin.create_topics([NewTopic("loot", 1, 1)])["loot"]
    assert refused(lambda: new.result(TIMEOUT_S)) == "TOPIC_AUTHORIZATION_FAILED"
    visible = set(thieves_admin.list_topics(timeout=TIMEOUT_S).topics)
    assert "steps" not in visible
    assert "closures" in visible


@pytest.mark.usefixtures("stack")
def test_a_program_without_its_rights_ends_with_an_error_that_names_them(
    stack: Stack, kafka: SecuredKafka, tmp_path: Path
) -> None:
    wrong = of_program(isolated(stack.settings, tmp_path), kafka, "measure")
    wrong = wrong.model_copy(update={"kafka": wrong.kafka, "schema_registry": stack.settings.schema_registry})
    label = ServiceProcess("stepstream.jobs.label", wrong, lambda: False, tmp_path / "log")
    label.launch()
    assert label.wait() == 1
    last = label.log_text.strip().splitlines()[-1]
    assert "Kafka refuses user 'stepstream-measure'" in last
    assert "Read on topic 'governed-steps'" in last
    assert "Read on group 'stepstream-label'" in last
    assert "`stepstream topics acls` prints for 'label'" in last
    with closing(Codec(stack.settings)) as codec, pytest.raises(AccessDenied, match="transactional id 'learner/demo'"):
        ExclusiveProducer(wrong.kafka, codec, "test", owner_id("demo"), lambda: False).take_over()


ENDING = {"registry": "stepstream.services.registry", "learner": "stepstream.learner"}
SERVING = {"gateway": "stepstream.services.gateway", "console": "stepstream.services.console"}


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize("program", [*ENDING, *SERVING])
def test_a_service_without_its_rights_names_them_at_its_start(
    stack: Stack, kafka: SecuredKafka, tmp_path: Path, program: str
) -> None:
    """Gateway and console serve all the same: an agent's calls need no Kafka."""
    wrong = of_program(isolated(stack.settings, tmp_path), kafka, "sdk")
    wrong = wrong.model_copy(update={"kafka": wrong.kafka, "schema_registry": stack.settings.schema_registry})
    process = ServiceProcess((ENDING | SERVING)[program], wrong, lambda: False, tmp_path / "log")
    process.launch()
    try:
        wait_until(lambda: f"`stepstream topics acls` prints for '{program}'" in process.log_text)
        assert "Kafka refuses user 'stepstream-sdk'" in process.log_text
        if program in ENDING:
            assert process.wait() == 1
        else:
            assert process.status is None
    finally:
        process.kill()


def test_clickhouse_is_reached_over_mutual_tls(stack: Stack, kafka: SecuredKafka) -> None:
    certificate = kafka.authority.issue("store")
    with TlsFront(stack.settings.store.port, certificate, kafka.authority.file) as front:
        user, password = store_credentials(stack.settings)
        fields = {"url": f"https://127.0.0.1:{front.port}", "user": user, "password": SecretStr(password)}
        files = {"ca_location": str(kafka.authority.file), "certificate_location": str(certificate)}
        settings = with_settings(stack.settings, clickhouse=fields | files)
        client = connect(settings, database=settings.clickhouse.database)
        assert client.command("SELECT 1") == 1
        client.close_connections()
        client.close()
        reader = {"reader_user": user, "reader_password": SecretStr(password)}
        assert doctor_services.store(with_settings(settings, clickhouse=reader)).state == "ok"
        for lacking in files:
            with pytest.raises(StoreUnavailableError, match="cannot be reached"):
                connect(with_settings(settings, clickhouse={lacking: ""}))
