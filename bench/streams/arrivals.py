"""When what follows from a trajectory arrives, at a steady pace of steps."""

import itertools
import statistics
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer

from stepstream.topics import events
from stepstream.topics.client import client_config
from stepstream.topics.ids import new_event_id
from streams.plain_loop import from_now
from streams.traffic import STEPS_OF_ONE, trajectory
from streams.workers import Bench, wait_for

PACE = 500.0
"""Steps a second."""


class Follower:
    """Notes when records with the ids waited for arrive on a topic."""

    def __init__(self, bench: Bench, topic: str, identify: Callable[[bytes], str]) -> None:
        """`identify` reads an id from a record's bytes: decoding it all would make the follower what is measured."""
        self.arrived: dict[str, float] = {}
        self._bench, self._topic, self._identify = bench, topic, identify
        self._stop = threading.Event()
        self._assigned = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> "Follower":
        self._thread.start()
        self._assigned.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        consumer = Consumer(
            client_config(self._bench.settings.kafka)
            | {"group.id": new_event_id(), "auto.offset.reset": "latest", "fetch.wait.max.ms": 5}
        )
        consumer.subscribe([self._topic], on_assign=from_now(self._assigned.set))
        while not self._stop.is_set():
            for message in consumer.consume(50, 0.001):
                if message.error() is None:
                    self.arrived.setdefault(self._identify(message.value() or b""), time.monotonic())
        consumer.close()


def paced(bench: Bench, name: str, send: Callable[[list[events.Step], events.Feedback], str]) -> dict[str, float]:
    """Sends trajectories at the pace; returns when what is waited for was sent, by the id that `send` gives."""
    sent = {}
    producer = bench.producer
    began = time.monotonic()
    for number in itertools.count():
        due = began + number * STEPS_OF_ONE / PACE
        if due - began > bench.seconds:
            break
        steps, ending = trajectory(f"{name}-{number}", bench.rng)
        while (left := due - time.monotonic()) > 0:
            producer.poll(min(left, 0.005))
        waited_for = send(steps, ending)
        sent[waited_for] = time.monotonic()
    producer.flush()
    return sent


def latency(bench: Bench, name: str, follower: Follower, send: Callable[..., str]) -> tuple[float, float]:
    """p50 and p99 in milliseconds; the first second, in which everything warms up, is left out."""
    with follower:
        sent = paced(bench, name, send)
        wait_for(lambda: follower.arrived.keys() >= sent.keys())
    start = min(sent.values()) + 1.0
    times = sorted((follower.arrived[i] - at) * 1000 for i, at in sent.items() if at >= start)
    return statistics.median(times), times[int(len(times) * 0.99)]


def event_id(value: bytes) -> str:
    """The first field of every record: after the header of five bytes, a string of 36 characters."""
    return value[6:42].decode()


def trajectory_id(value: bytes) -> str:
    """The third field of a label, after `event_id` and a time."""
    place = 42
    while value[place] & 0x80:
        place += 1
    length = value[place + 1] // 2  # a zigzag number, below 64 characters in one byte
    return value[place + 2 : place + 2 + length].decode()


def stats_key(value: bytes) -> str:
    """The key of a statistics record of one trajectory; of a cohort, something else."""
    place = 42
    while value[place] & 0x80:
        place += 1
    return trajectory_id(value[:42] + b"\x00" + value[place + 2 :])  # its scope comes between
