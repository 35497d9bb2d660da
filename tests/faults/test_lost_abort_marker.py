"""Lose the marker that ends a worker's offsets, as a broker may that is killed in an abort: the worker goes on."""

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from stack_fixtures import with_settings
from stack_world import World
from stream_records import as_governed, make_steps
from waiting import wait_until

from stepstream.cli.doctor_offsets import pending_offsets
from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.broker import data_folder
from stepstream.embedded.stack import Stack
from stepstream.jobs.runtime.processor import consumer_group, transactional_id_of
from stepstream.topics.client import client_config

pytestmark = pytest.mark.faults

GROUP = consumer_group("label")
TOPIC = "governed-steps"
_BATCH_HEADER = struct.Struct(">qiibih")
"""Base offset, length of the rest, leader epoch, format, checksum, attributes."""
_CONTROL = 1 << 5


@pytest.fixture
def stack(
    base_settings: Settings, with_topics_and_tables: Callable[[Settings], Settings], tmp_path: Path
) -> Iterator[Stack]:
    settings = with_settings(isolated(base_settings, tmp_path), label={"idle_timeout_s": 1.0})
    with Stack(with_topics_and_tables(settings), ["broker", "registry", "label"], deferred=["label"]) as running:
        yield running


def test_offsets_that_stay_pending_do_not_stop_a_worker(stack: Stack) -> None:
    settings = stack.settings
    abort_offsets(settings)
    stack.stop_process("broker")
    remove_last_marker(data_folder(settings))
    stack.start_process("broker")
    wait_until(lambda: is_pending(settings), "reads of the offsets time out")
    [finding] = pending_offsets(settings)
    assert f"offsets of group {GROUP} have been pending" in finding.detail
    assert f"{TOPIC}[0]" in finding.detail

    stack.start_process("label")
    with World(settings) as world:
        world.send_and_flush(TOPIC, *map(as_governed, make_steps("t", 2)))
        wait_until(lambda: world.records("labeled-trajectories"), "the trajectory is closed by time and labelled")
    assert not list(pending_offsets(settings))


def abort_offsets(settings: Settings) -> None:
    """Abort a transaction with offsets of the group, as a worker that was killed, and wait until it is completed."""
    config = client_config(settings.kafka) | {"transactional.id": transactional_id_of(settings, "label")}
    producer = Producer(config)
    producer.init_transactions(60)
    producer.begin_transaction()
    consumer = Consumer(client_config(settings.kafka) | {"group.id": GROUP})
    with closing(consumer):
        producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 5)], consumer.consumer_group_metadata(), 60)
    producer.abort_transaction(60)
    wait_until(lambda: committed(settings) < 0, "the marker is written")
    # Offsets can be read before the coordinator has logged the end of the abort. A broker that stopped in between would
    # write the marker again after its start; until then it rejects the next owner of the id, which tries again.
    Producer(config).init_transactions(60)


def committed(settings: Settings) -> int:
    with closing(Consumer(client_config(settings.kafka) | {"group.id": GROUP})) as consumer:
        return int(consumer.committed([TopicPartition(TOPIC, 0)], timeout=10)[0].offset)


def is_pending(settings: Settings) -> bool:
    try:
        committed(settings)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError._TIMED_OUT)
    return False


def remove_last_marker(data: Path) -> None:
    """Cut the log of the groups' offsets at its last transaction marker, while the broker is stopped."""
    cut = 0
    for folder in data.glob("__consumer_offsets-*"):
        [segment] = folder.glob("*.log")
        content, position, marker = segment.read_bytes(), 0, None
        while position < len(content):
            _, length, _, _, _, attributes = _BATCH_HEADER.unpack_from(content, position)
            if attributes & _CONTROL:
                marker = position
            position += 12 + length
        if marker is not None:
            segment.write_bytes(content[:marker])
            for file in (*folder.glob("*.snapshot"), *folder.glob("*index")):
                file.unlink()
            cut += 1
    assert cut == 1
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
