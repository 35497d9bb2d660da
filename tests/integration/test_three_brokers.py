"""Three brokers with two replicas in sync lose one under load: nothing is lost, and nothing counts twice."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import ConfigResource
from kafka_nodes import KafkaNodes
from stack_fixtures import with_settings
from stack_world import World
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import admin_client

STEPS = 2


def configure(cluster: KafkaNodes, node: int) -> dict[str, str]:
    clients, controller = f"127.0.0.1:{cluster.port(node)}", f"127.0.0.1:{cluster.port(node, 2)}"
    return {
        "listeners": f"PLAINTEXT://{clients},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{clients}",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
    }


@pytest.fixture
def cluster(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaNodes, Settings]]:
    quick = with_settings(base_settings, broker={"session_timeout_s": 3.0})
    with KafkaNodes(quick, tmp_path_factory.mktemp("nodes"), 3, configure) as nodes:
        wanted = with_settings(
            isolated(base_settings, tmp_path_factory.mktemp("stack")),
            kafka={"bootstrap": f"PLAINTEXT://{nodes.bootstrap()}", "replication": 3},
            topics={"partitions": 3},
        )
        nodes.wait_ready(wanted.kafka, 3)
        yield nodes, wanted


@contextmanager
def load(world: World) -> Iterator[list[str]]:
    """Send trajectories, each acknowledged before the next, until the end of the block; yield their names."""
    sent: list[str] = []
    faults: list[BaseException] = []
    ended = threading.Event()

    def send() -> None:
        try:
            while not ended.is_set():
                name = f"t{len(sent)}"
                world.send_trajectories(name, steps=STEPS)
                sent.append(name)
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join(TIMEOUT_S)
    assert not faults


def leader_of(settings: Settings, topic: str) -> int:
    admin = admin_client(settings.kafka)
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
    leader = described.partitions[0].leader
    assert leader is not None
    return int(leader.id)


def test_a_broker_killed_under_load_loses_and_doubles_nothing(cluster: tuple[KafkaNodes, Settings]) -> None:
    nodes, wanted = cluster
    with Stack(wanted, ["broker", "registry", "govern", "label"]) as stack, World(stack.settings) as world:
        admin = admin_client(stack.settings.kafka)
        described = admin.describe_topics(TopicCollection(list(TOPICS)))
        assert {len(p.replicas) for topic in described.values() for p in topic.result().partitions} == {3}
        resource = ConfigResource(ConfigResource.Type.TOPIC, "steps")
        values = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        assert values["min.insync.replicas"].value == "2"
        with load(world) as sent:
            wait_until(lambda: len(sent) >= 20)
            nodes.kill(leader_of(stack.settings, "steps"))
            before = len(sent)
            wait_until(lambda: len(sent) >= before + 40, "the load goes on with two brokers")
        wait_until(
            lambda: len(world.read("labeled-trajectories")) >= len(sent),
            lambda: f"{len(sent)} trajectories are labelled",
        )
        labels = world.records("labeled-trajectories")
        assert Counter(label["trajectory_id"] for label in labels) == Counter(sent)
        assert {(label["revision"], len(label["steps"])) for label in labels} == {(1, STEPS)}
        raw = Counter((step["trajectory_id"], step["step_index"]) for step in world.records("steps"))
        governed = Counter((step["trajectory_id"], step["step_index"]) for step in world.records("governed-steps"))
        assert raw == governed == Counter((name, index) for name in sent for index in range(STEPS))
        assert world.records("dead-letters") == []
