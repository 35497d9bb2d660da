"""Test the broker under its supervisor: records survive a kill, and no process outlives its owner."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings, environment_of
from stepstream.embedded.addresses import isolated
from stepstream.embedded.errors import StackError
from stepstream.embedded.stack import Event, Stack
from stepstream.topics.client import client_config

TOPIC = "letters"


def create_topic(settings: Settings, name: str) -> None:
    admin = AdminClient(client_config(settings.kafka))
    for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
        future.result(TIMEOUT_S)


def produce(settings: Settings, topic: str, values: list[bytes]) -> None:
    """Send the values; return when all are acknowledged."""
    producer = Producer({**client_config(settings.kafka), "enable.idempotence": True})
    failed: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _message: failed.append(error) if error else None)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed


def consume(settings: Settings, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {**client_config(settings.kafka), "group.id": f"reader-{time.monotonic_ns()}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    try:

        def has_all() -> bool:
            values.extend(m.value() or b"" for m in consumer.consume(count, 0.2))
            return len(values) >= count

        wait_until(has_all)
    finally:
        consumer.close()
    return values


def test_produces_and_consumes(broker_settings: Settings) -> None:
    create_topic(broker_settings, TOPIC)
    sent = [b"%d" % i for i in range(100)]
    produce(broker_settings, TOPIC, sent)
    assert consume(broker_settings, TOPIC, 100) == sent


def test_topics_are_not_created_by_use(broker_settings: Settings) -> None:
    admin = AdminClient({**client_config(broker_settings.kafka), "allow.auto.create.topics": True})
    admin.list_topics("never-declared", timeout=TIMEOUT_S)
    assert "never-declared" not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_a_killed_broker_restarts_with_every_acknowledged_record(base_settings: Settings, tmp_path: Path) -> None:
    events: list[Event] = []
    settings = isolated(base_settings, tmp_path)
    with Stack(settings, ["broker"], events.append) as stack:
        create_topic(stack.settings, TOPIC)
        before = [b"before %d" % i for i in range(500)]
        produce(stack.settings, TOPIC, before)

        killed = stack.kill("broker")
        after = [b"after %d" % i for i in range(500)]
        produce(stack.settings, TOPIC, after)  # the producer waits for the restart

        assert stack.wait_ready("broker", after_pid=killed) != killed
        stack.poll()
        assert Event("broker", "restarted") in events
        assert consume(stack.settings, TOPIC, 1000) == before + after
        members = stack.members()
        assert len(members) == 2  # the supervisor and the Java process, without a wrapper
    assert not [process for process in members if process.is_running()]

    with Stack(settings, ["broker"]) as stack:  # the data outlives the stack
        assert consume(stack.settings, TOPIC, 1000) == before + after


def test_the_error_of_a_process_that_cannot_start_has_its_last_log_line(
    base_settings: Settings, tmp_path: Path
) -> None:
    settings = isolated(base_settings, tmp_path)
    (tmp_path / "kafka").write_text("not a folder")
    stack = Stack(settings, ["broker"])
    with pytest.raises(StackError, match=r"broker cannot be kept running; its log .* set STEPSTREAM_PATHS_DATA"):
        stack.start()
    assert not stack.members()


@pytest.mark.faults
def test_killing_the_owner_ends_all_processes(base_settings: Settings, tmp_path: Path) -> None:
    settings = isolated(base_settings, tmp_path)
    program = (
        "import time; from stepstream.config import load; from stepstream.embedded.stack import Stack\n"
        "stack = Stack(load(), ['broker']); stack.start()\n"
        "print(*[process.pid for process in stack.members()], flush=True); time.sleep(600)"
    )
    environment = {**os.environ, **environment_of(settings)}
    owner = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    try:
        members = [int(word) for word in owner.stdout.readline().split()]
        assert len(members) == 2
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in members))


@pytest.mark.faults
def test_killing_the_supervisor_ends_all_processes(base_settings: Settings, tmp_path: Path) -> None:
    stack = Stack(isolated(base_settings, tmp_path), ["broker"])
    stack.start()
    broker = psutil.Process(stack.pid("broker"))
    supervisor = broker.parent()
    assert supervisor is not None
    supervisor.kill()
    wait_until(lambda: not broker.is_running())
    with pytest.raises(StackError, match="supervisord does not answer"):
        stack.poll()
    stack.stop()
    assert not stack.members()
