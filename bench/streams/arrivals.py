"""Measure the latency from a step to its results, at a steady pace of steps."""

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterable

from confluent_kafka import Consumer

from stepstream.topics import events
from stepstream.topics.client import client_config
from stepstream.topics.ids import new_event_id
from streams.plain_loop import from_now
from streams.traffic import STEPS_OF_ONE, trajectory
from streams.workers import Bench, wait_for

PACE = 500.0
"""Steps per second."""


class Follower:
    """Thread that records the arrival time of each id on a topic, in seconds."""

    def __init__(self, bench: Bench, topic: str, identify: Callable[[bytes], str]) -> None:
        """`identify` reads an id from a record's bytes; full decoding would limit the measured rate."""
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
    """Send trajectories at the pace; return the time of sending by the id that `send` returns."""
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
        result_id = send(steps, ending)
        sent[result_id] = time.monotonic()
    producer.flush()
    return sent


def latency(bench: Bench, name: str, follower: Follower, send: Callable[..., str]) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds after the warm-up."""
    with follower:
        sent = paced(bench, name, send)
        wait_for(lambda: follower.arrived.keys() >= sent.keys())
    return percentiles((follower.arrived[i] - sent[i]) * 1000 for i in after_warm_up(sent))


def after_warm_up(sent: dict[str, float]) -> list[str]:
    """Return the ids that were sent after the first second."""
    start = min(sent.values()) + 1.0
    return [result_id for result_id, at in sent.items() if at >= start]


def percentiles(values: Iterable[float]) -> tuple[float, float]:
    """Return p50 and p99."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[int(len(ordered) * 0.99)]


def event_id(value: bytes) -> str:
    """Return the first field of a record: 36 characters after a header of five bytes and the length."""
    return value[6:42].decode()


def trajectory_id(value: bytes) -> str:
    """Return the third field of a label, after `event_id` and a time."""
    position = 42
    while value[position] & 0x80:
        position += 1
    length = value[position + 1] // 2  # a zigzag number, below 64 characters in one byte
    return value[position + 2 : position + 2 + length].decode()


def stats_key(value: bytes) -> str:
    """Return the trajectory id of a trajectory's statistics record; for a cohort's, another text."""
    position = 42
    while value[position] & 0x80:
        position += 1
    return trajectory_id(value[:42] + b"\x00" + value[position + 2 :])  # the scope is between
