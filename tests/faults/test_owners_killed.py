"""Stop and kill the two workers of each job under traffic: nothing is lost, doubled or out of order.

The worst schedules of the model in `tests/support/owner_schedules.py`, with a real broker, real processes and
RocksDB. The environment variables OWNER_FAULT_SECONDS, OWNER_FAULT_RATE (steps a second) and OWNER_SESSION_S make it
longer, faster and slower to take over.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stack_fixtures import with_settings
from stack_world import World
from stream_records import as_governed, make_ending, make_feedback, make_steps
from waiting import wait_until

from stepstream.config import Settings, environment_of
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.erasure.delete_from_log import end_offsets
from stepstream.jobs.runtime.processor import consumer_group
from stepstream.topics.client import admin_client

pytestmark = pytest.mark.faults

JOBS = ("govern", "label", "measure")
SECONDS = float(os.environ.get("OWNER_FAULT_SECONDS", "30"))
STEPS_A_SECOND = float(os.environ.get("OWNER_FAULT_RATE", "60"))
SESSION_S = float(os.environ.get("OWNER_SESSION_S", "4"))
TAKEOVER_S = 10.0
"""Longest time after the session timeout until the partitions of a dead worker have a new owner that folds."""
FINISH_S = 180.0
STEPS = 4
STEPS_TOPIC = "governed-steps"


class JobWorker:
    """One worker of a job; a process that ends is started again."""

    def __init__(self, settings: Settings, job: str, instance: int, folder: Path) -> None:
        jobs = {"instance": instance, "session_timeout_s": SESSION_S}
        self._environment = os.environ | environment_of(with_settings(settings, jobs=jobs, metrics={"port": 0}))
        self._command = [sys.executable, "-m", f"stepstream.jobs.{job}"]
        self.log = folder / f"{job}-{instance}.log"
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self._command, env=self._environment, stderr=out)

    def revive(self) -> None:
        if self.process.poll() is not None:
            self.start()

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    settings = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("owners")))
    with Stack(settings, ["broker", "registry"]) as running:
        yield running


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    with World(stack.settings) as opened:
        yield opened


@pytest.fixture
def workers(world: World, tmp_path: Path) -> Iterator[list[JobWorker]]:
    running = [JobWorker(world.settings, job, instance, tmp_path) for job in JOBS for instance in (1, 2)]
    yield running
    for worker in running:
        worker.end()


def test_stopped_and_killed_workers_lose_and_double_nothing(world: World, workers: list[JobWorker]) -> None:
    rng = random.Random(0)
    names: list[str] = []
    late: set[str] = set()
    stopped: list[tuple[float, JobWorker]] = []
    next_fault = began = time.monotonic()
    while (now := time.monotonic()) < began + SECONDS:
        name = f"t{len(names)}"
        names.append(name)
        world.send("steps", *make_steps(name, STEPS))
        world.send("feedback", make_ending(name, STEPS))
        if len(names) > 20:  # a late revision
            late.add(names[-20])
            world.send("feedback", make_feedback(names[-20], 0.0, number=1))
        world.producer.poll(0)
        for waked_at, worker in stopped:
            if now >= waked_at:
                worker.process.send_signal(signal.SIGCONT)
        stopped = [entry for entry in stopped if now < entry[0]]
        for worker in workers:
            worker.revive()
        running = [one for one in workers if one not in [worker for _, worker in stopped]]
        if now >= next_fault and running:
            next_fault = now + rng.uniform(0.5, 3.0)
            victim = rng.choice(running)
            if rng.random() < 0.3:
                victim.process.kill()
                victim.process.wait()
            else:
                victim.process.send_signal(signal.SIGSTOP)
                stopped.append((now + rng.uniform(0.5, 2.5 * SESSION_S), victim))
        time.sleep(max(0.0, began + len(names) * STEPS / STEPS_A_SECOND - time.monotonic()))
    sent_s = time.monotonic() - began
    for _, worker in stopped:
        worker.process.send_signal(signal.SIGCONT)
    world.producer.flush()
    expected = {name: (STEPS, 0.0 if name in late else 1.0) for name in names}
    seen: dict[str, Any] = {}

    def labels_are_complete() -> bool:
        for worker in workers:
            worker.revive()
        newest = {label["trajectory_id"]: label for label in world.records("labeled-trajectories")}
        found = {name: (len(label["steps"]), label["reward"]) for name, label in newest.items()}
        seen["wrong"] = {name: found.get(name) for name in expected if found.get(name) != expected[name]}
        seen["measured"] = measured(world)
        return not seen["wrong"] and seen["measured"] == len(names)

    wait_until(labels_are_complete, lambda: f"of {len(names)} trajectories: {seen}", timeout_s=FINISH_S)
    check_order(world, names)
    starts = sum(worker.starts for worker in workers)
    print(f"{len(names) * STEPS} steps at {len(names) * STEPS / sent_s:.0f} a second, {starts} starts of workers")


def test_a_worker_goes_on_after_a_restart_of_the_broker(stack: Stack, world: World, tmp_path: Path) -> None:
    settings = with_settings(world.settings, label={"idle_timeout_s": 1.0})
    worker = JobWorker(settings, "label", 1, tmp_path)
    process = worker.process
    try:
        for name in ("before", "after"):
            world.send_and_flush("governed-steps", *map(as_governed, make_steps(name, STEPS)))
            wait_until(lambda name=name: is_labelled(world, name), f"{name!r} is closed by time")  # type: ignore[misc]
            if name == "before":
                stack.stop_process("broker")
                stack.start_process("broker")
        assert process.poll() is None
    finally:
        worker.end()


def test_the_place_of_a_dead_worker_is_taken_in_time(world: World, tmp_path: Path) -> None:
    workers = [JobWorker(world.settings, "label", instance, tmp_path) for instance in (1, 2)]
    try:
        wait_until(lambda: sizes_of_assignments(world.settings) == [4, 4], "each worker has half of the partitions")
        label_in_each_partition(world, "both", timeout_s=FINISH_S)
        workers[1].end()
        taken_s = label_in_each_partition(world, "one", timeout_s=SESSION_S + TAKEOVER_S)
        print(f"partitions of a dead worker: labels after {taken_s:.1f} s, session timeout {SESSION_S:g} s")
    finally:
        for worker in workers:
            worker.end()


def sizes_of_assignments(settings: Settings) -> list[int]:
    """Return the number of partitions of `governed-steps` that each member of `label` has."""
    group = consumer_group("label")
    admin = admin_client(settings.kafka)
    described = admin.describe_consumer_groups([group])[group].result()
    assigned = [[one for one in m.assignment.topic_partitions if one.topic == STEPS_TOPIC] for m in described.members]
    return [len(partitions) for partitions in assigned]


def label_in_each_partition(world: World, prefix: str, timeout_s: float) -> float:
    """Let `label` label a trajectory in each partition; return the seconds until the last label."""
    began = time.monotonic()
    names = {f"{prefix}-{number}" for number in range(64)}
    ends = end_offsets(world.settings, (STEPS_TOPIC, "labeled-trajectories"))
    for name in names:
        world.send(STEPS_TOPIC, *map(as_governed, make_steps(name, 1)))
        world.send("governed-feedback", as_governed(make_ending(name, 1)))
    world.producer.flush()
    assert {event.partition for event in world.read(STEPS_TOPIC, ends)} == set(range(8))

    def missing() -> set[str]:
        return names - {label["trajectory_id"] for label in world.records("labeled-trajectories", ends)}

    wait_until(lambda: not missing(), lambda: f"not labelled: {sorted(missing())}", timeout_s=timeout_s)
    return time.monotonic() - began


def is_labelled(world: World, name: str) -> bool:
    return any(label["trajectory_id"] == name for label in world.records("labeled-trajectories"))


def measured(world: World) -> int:
    """Return the number of trajectories in the newest statistics of the whole cohort."""
    newest = {
        (event["key"], event["partition"]): event["trajectories"]
        for event in world.records("trajectory-stats")
        if event["scope"] == "cohort" and event["tool"] == ""
    }
    return sum(newest.values())


def check_order(world: World, names: list[str]) -> None:
    """Check that each topic has each event once, and the states of each thing in ascending order."""
    steps: dict[str, list[int]] = defaultdict(list)
    for step in world.records("governed-steps"):
        steps[step["trajectory_id"]].append(step["step_index"])
    assert {name: steps[name] for name in names} == {name: list(range(STEPS)) for name in names}
    revisions: dict[str, list[int]] = defaultdict(list)
    for label in world.records("labeled-trajectories"):
        revisions[label["trajectory_id"]].append(label["revision"])
    assert all(found == list(range(1, len(found) + 1)) for found in revisions.values())
    versions: dict[Any, list[int]] = defaultdict(list)
    for stats in world.records("trajectory-stats"):
        versions[stats["scope"], stats["key"]].append(stats["version"])
    assert all(found == sorted(set(found)) for found in versions.values())
    assert world.records("dead-letters") == []
