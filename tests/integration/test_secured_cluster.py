"""A cluster with TLS, users and an authorizer: every client connects, every program works, and nobody does more."""

import asyncio
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import orjson
import pytest
from certificates import Authority
from command_line import stepstream
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from learner_lab import PER_VERSION, LearnerLab
from pydantic import SecretStr
from scraped_metrics import names_of
from scripted_judge import reply, serve_replies
from secured_clients import first_error, refused, send, values_read_by_aiokafka
from secured_kafka import PLAIN_USER, SecuredKafka
from service_process import ServiceProcess
from stack_fixtures import with_settings
from stack_world import World
from tls_front import TlsFront
from waiting import TIMEOUT_S, wait_until

from stepstream.cli import doctor_services
from stepstream.config import KafkaSettings, Settings, SettingsError, environment_of, variable
from stepstream.config.secrets import store_credentials
from stepstream.core.metrics import exported_by, services
from stepstream.embedded import stack as embedded_stack
from stepstream.embedded.addresses import isolated
from stepstream.embedded.ports import free_block
from stepstream.embedded.processes import Part, Process, stack_parts
from stepstream.embedded.ready import HttpReady
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect
from stepstream.jobs.runtime.faust_app import credentials
from stepstream.learner.publish import owner_id, publish_root
from stepstream.topics.access import AccessDenied
from stepstream.topics.acl_formats import user_of
from stepstream.topics.acls import OPERATOR, PROGRAMS, Acl, acls_of
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_message
from stepstream.topics.exclusive_producer import ExclusiveProducer

pytest_plugins = ["node_project"]

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
    assert asyncio.run(values_read_by_aiokafka(settings, LETTERS, f"read-aio-{way}", len(values))) == values


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
    wanted = with_settings(wanted, topics={"partitions": 1}, verify={"file": verifications})
    if find_spec("spacy") is not None:
        names_model = tmp_path_factory.mktemp("inspect") / "names"
        import_module("spacy").blank("en").to_disk(names_model)
        wanted = with_settings(wanted, inspect={"model": str(names_model)})

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

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded_stack, "stack_parts", parts_under_their_users)
        names = ["govern", "label", "measure", "watch", "store-writer", "curate", "judge", "verify", "control"]
        names += ["inspect"] if wanted.inspect.model else []
        with serve_replies((200, reply('{"score": 1}'))) as (judge, _):
            wanted = with_settings(wanted, judge={"url": judge, "model": "judge"})
            with Stack(wanted, ["broker", "registry", "store", *names, "gateway", "console"]) as stack:
                yield stack


def test_every_job_and_service_does_its_work_under_its_own_user(
    stack: Stack, kafka: SecuredKafka, tmp_path: Path
) -> None:
    settings = stack.settings
    policy = tmp_path / "policy.toml"
    policy.write_text("[inspect]\nshare = 1.0\n")
    body = orjson.dumps({"trajectory_id": "one", "name": "thumbs", "value": 1.0})
    request = urllib.request.Request(
        f"http://127.0.0.1:{settings.gateway.port}/v1/feedback", body, {"Content-Type": "application/json"}
    )
    with World(settings) as operator:
        operator.run_json("policy", "apply", str(policy), "--tenant", "default")
    with World(of_program(settings, kafka, "sdk")) as agent:
        agent.send_trajectories("one", "two", task_id="four")
        agent.send_trajectories("talk", messages=[new_message(role="user", content="Thank you.")])
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        assert response.status in (200, 202)
    with World(settings) as operator:
        operator.wait_for_value("SELECT count() FROM trajectories FINAL WHERE success", 3)
        judged = {"thumbs", "answer", "shadow.next_state"}
        wait_until(lambda: judged <= {one["name"] for one in operator.records("governed-feedback")})
        wait_until(lambda: operator.records("trajectory-stats"))
        if settings.inspect.model:
            wait_until(lambda: "inspected" in {one["action"] for one in operator.records("governance-audit")})


def check_metrics(process: str, port: int) -> None:
    """Assert that a process exports its metrics of the catalogue and no others but those of followed tables."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as page:
        found = names_of(page.read().decode())
    declared = {metric.name for metric in exported_by(process)}
    assert declared <= found, process
    assert found <= declared | {metric.name for metric in services.TABLES}, process


def test_every_process_exports_the_metrics_of_the_catalogue(stack: Stack) -> None:
    others = {"broker", "fleet", "learner", "worker-0"} | ({"inspect"} if not stack.settings.inspect.model else set())
    for part in stack_parts(stack.settings):
        if isinstance(part, Process) and part.name not in others:
            check_metrics(part.name, part.ports[0].port)


def test_learner_worker_and_fleet_do_their_work_under_their_own_users(
    stack: Stack, kafka: SecuredKafka, tmp_path: Path
) -> None:
    with closing(LearnerLab(stack.settings, tmp_path)) as lab:
        learner = lab.learner.settings = of_program(lab.settings, kafka, "learner")
        publish_root(learner, lab.base, lab.model)
        lab.produce(*(f"g{number}" for number in range(PER_VERSION)))
        with lab.learner:
            lab.wait_for(1)
            check_metrics("learner", lab.settings.metrics.port)
        worker = with_settings(
            of_program(stack.settings, kafka, "inference"),
            inference={"model": lab.model, "port": free_block(1), "worker_id": "secured", "status_every_s": 0.3},
        )
        serves = HttpReady(f"http://127.0.0.1:{worker.inference.port}/ready")
        with ServiceProcess("stepstream.services.inference", worker, serves, tmp_path / "worker.log"):
            check_metrics("worker", worker.inference.port)
            fleet = with_settings(
                of_program(stack.settings, kafka, "fleet"),
                fleet={"model": lab.model, "max_trajectories": 1, "max_ahead": -1, "ledger": tmp_path / "ledger"},
                learner={"model": lab.model},
                metrics={"port": free_block(1)},
            )
            agents = ServiceProcess("stepstream.services.fleet", fleet, lambda: False, tmp_path / "fleet.log")
            agents.launch()
            assert agents.wait() == 0, agents.log_text
    with World(stack.settings) as operator:
        wait_until(lambda: lab.model in {step["model"] for step in operator.records("governed-steps")})
        assert {one["worker_id"] for one in operator.records("worker-status")} == {"secured"}


def test_the_node_example_publishes_over_tls_as_a_user(
    stack: Stack, kafka: SecuredKafka, node_project: Path, tmp_path: Path
) -> None:
    def publish(settings: Settings) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **environment_of(settings)}
        return subprocess.run(
            ["node", "publish.js"],
            cwd=node_project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    agent = of_program(stack.settings, kafka, "sdk")
    done = publish(agent)
    assert done.returncode == 0, done.stderr
    name = orjson.loads(done.stdout.splitlines()[0])["record"]["trajectory_id"]
    with World(stack.settings) as operator:
        wait_until(lambda: name in {label["trajectory_id"] for label in operator.records("labeled-trajectories")})
    thief = of_program(stack.settings, kafka, "watch")
    assert "Not authorized" in publish(thief).stderr
    other = with_settings(agent, kafka={"ssl_ca_location": str(Authority(tmp_path, "other").file)})
    assert publish(other).returncode == 1


def test_a_new_release_gets_its_rights_and_topics_beside_those_of_an_earlier_one(
    stack: Stack, kafka: SecuredKafka
) -> None:
    """`kafka-acls --add` of what is there already changes nothing, so the printed commands are run again."""
    prefix, user, added = "earlier.", "upgrader", ("rollouts", "steps")
    kafka.add_users(user)
    rights = acls_of(OPERATOR, prefix)
    kafka.grant(f"User:{user}", *(acl for acl in rights if acl.name.removeprefix(prefix) not in added))
    settings = with_settings(
        stack.settings.model_copy(update={"kafka": kafka.scram(user)}), kafka={"prefix": prefix, "deadline_s": 20.0}
    )
    refusal = stepstream(settings, "topics", "apply")
    assert refusal.status == 1, refusal.stderr
    for topic in added:
        assert f"{prefix}{topic}" in refusal.stderr
    assert "Traceback" not in refusal.stderr
    kafka.grant(f"User:{user}", *rights)
    done = stepstream(settings, "topics", "apply", "--json")
    assert done.status == 0, done.stderr
    created = {row["name"] for row in orjson.loads(done.stdout) if row["action"] == "created"}
    assert {f"{prefix}{topic}" for topic in added} <= created
    again = stepstream(settings, "topics", "apply", "--json")
    assert (again.status, orjson.loads(again.stdout)) == (0, []), again.stderr


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
