"""Test the Faust worker of the jobs: it commits only processed batches, stops on a bug, assigns partitions alike."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings, environment_of
from stepstream.topics.client import admin_client, client_config

SCRIPT = Path(__file__).parents[1] / "support" / "job_worker_process.py"
PARTITIONS = 3  # odd: assigned one by one to two workers, the partitions of two topics would differ

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def topics(broker_settings: Settings) -> list[str]:
    names = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("left", "right")]
    admin = admin_client(broker_settings.kafka)
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result()
    return names


@pytest.fixture
def start(broker_settings: Settings, tmp_path: Path) -> Iterator[Start]:
    running = []

    def start_one(job: str, file: Path, topics: list[str], *, state: str = "one") -> "subprocess.Popen[str]":
        settings = with_settings(broker_settings, jobs={"state": tmp_path / state}, metrics={"port": 0})
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), job, str(file), *topics],
            env=os.environ | environment_of(settings),
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start_one
    for process in running:
        process.kill()
        process.communicate()


def produce(settings: Settings, topic: str, values: list[str], partition: int) -> None:
    producer = Producer(client_config(settings.kafka))
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    producer.flush()


def produce_in_a_transaction(settings: Settings, topic: str, value: str, *, commits: bool) -> None:
    """Send a value to partition 0, as another producer that commits or aborts."""
    producer = Producer(client_config(settings.kafka) | {"transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, value.encode(), partition=0)
    producer.flush()
    if commits:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


def committed(settings: Settings, job: str, topics: list[str]) -> int:
    """Return the number of records that the group has committed over all partitions."""
    consumer = Consumer(client_config(settings.kafka) | {"group.id": f"stepstream-{job}"})
    wanted = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    offsets = [max(0, entry.offset) for entry in consumer.committed(wanted, timeout=TIMEOUT_S)]
    consumer.close()
    return sum(offsets)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def values(*files: Path) -> list[str]:
    return [line.split()[3] for file in files for line in lines(file) if line[:4] in ("left", "righ")]


def test_a_batch_that_raises_is_not_committed_and_stops_the_process(
    broker_settings: Settings, topics: list[str], start: Start, tmp_path: Path
) -> None:
    job, file = f"job-{uuid.uuid4().hex[:8]}", tmp_path / "seen"
    armed = file.with_name("seen.armed")
    armed.touch()
    produce(broker_settings, topics[0], ["a", "b"], 0)
    first = start(job, file, topics)
    wait_until(lambda: values(file) == ["a", "b"], "the first records are there")
    wait_until(lambda: committed(broker_settings, job, topics) == 2, "they are committed")
    produce(broker_settings, topics[0], ["boom", "c"], 0)
    _, stderr = first.communicate(timeout=TIMEOUT_S)
    assert first.returncode == 1
    assert "RuntimeError: a bug" in stderr
    assert committed(broker_settings, job, topics) == 2
    armed.unlink()
    start(job, file, topics)
    wait_until(lambda: values(file) == ["a", "b", "boom", "c"], "the batch is delivered again")


def test_aborted_transactions_of_other_producers_are_not_processed(
    broker_settings: Settings, topics: list[str], start: Start, tmp_path: Path
) -> None:
    """Before and after the start of the worker; its position passes the markers."""
    job, file = f"job-{uuid.uuid4().hex[:8]}", tmp_path / "seen"
    for commits, value in ((True, "a"), (False, "aborted"), (True, "b")):
        produce_in_a_transaction(broker_settings, topics[0], value, commits=commits)
    start(job, file, topics)
    wait_until(lambda: values(file) == ["a", "b"], "the committed records are there")
    for commits, value in ((False, "aborted"), (True, "c"), (False, "aborted")):
        produce_in_a_transaction(broker_settings, topics[0], value, commits=commits)
    wait_until(lambda: committed(broker_settings, job, topics) == 2 * 6, "the position is at the end of the log")
    assert values(file) == ["a", "b", "c"]


def test_sigterm_commits_and_exits_with_success(
    broker_settings: Settings, topics: list[str], start: Start, tmp_path: Path
) -> None:
    job, file = f"job-{uuid.uuid4().hex[:8]}", tmp_path / "seen"
    produce(broker_settings, topics[0], [str(i) for i in range(50)], 1)
    worker = start(job, file, topics)
    wait_until(lambda: len(values(file)) == 50, "all records are there")
    worker.terminate()
    worker.communicate(timeout=TIMEOUT_S)
    assert worker.returncode == 0
    assert committed(broker_settings, job, topics) == 50


def test_two_workers_hold_the_same_partitions_of_every_topic(
    broker_settings: Settings, topics: list[str], start: Start, tmp_path: Path
) -> None:
    job = f"job-{uuid.uuid4().hex[:8]}"
    files = [tmp_path / "seen-one", tmp_path / "seen-two"]
    workers = [start(job, file, topics, state=f"state-{file.name}") for file in files]

    def all_are_assigned() -> bool:
        assigned = [assigned_partitions(file) for file in files]
        return all(assigned) and sorted(assigned[0] + assigned[1]) == list(range(PARTITIONS))

    wait_until(all_are_assigned, "the workers share the partitions")
    sent = []
    for topic in topics:
        for partition in range(PARTITIONS):
            names = [f"{topic}/{partition}/{i}" for i in range(5)]
            produce(broker_settings, topic, names, partition)
            sent += names
    wait_until(lambda: sorted(values(*files)) == sorted(sent), "each record is processed once")
    for file in files:
        partitions = {int(line.split()[1]) for line in lines(file) if line[:4] in ("left", "righ")}
        assert partitions == set(assigned_partitions(file)), "records of other partitions than those held"
    workers[0].kill()
    produce(broker_settings, topics[1], ["late"] * PARTITIONS, assigned_partitions(files[0])[0])
    wait_until(lambda: values(*files).count("late") == PARTITIONS, "the other worker has taken over")
    assert assigned_partitions(files[1]) == list(range(PARTITIONS))


def assigned_partitions(file: Path) -> list[int]:
    """Return the partitions that a worker was last assigned."""
    assignments = [line for line in lines(file) if line.startswith("open")]
    return [int(part) for part in assignments[-1][6:-1].split(",") if part.strip()] if assignments else []
