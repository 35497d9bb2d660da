"""Test four jobs with a real broker, registry and store: a killed job loses nothing and counts nothing twice."""

import random
import shutil
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from stack_world import World
from stream_records import make_ending, make_feedback, make_steps

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.topics.ids import now_us

JOBS = ("govern", "label", "measure", "store-writer")
STEPS = 3


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    settings = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("jobs")))
    with Stack(settings, ["broker", "registry", "store", *JOBS]) as running:
        yield running


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    with World(stack.settings) as opened:
        yield opened


def test_nothing_is_lost_or_counted_twice_while_every_job_is_killed(stack: Stack, world: World) -> None:
    rng = random.Random(0)
    victims = [*JOBS, *JOBS]
    killed: dict[str, int] = {}
    count = 240
    for number in range(count):
        name = f"k{number}"
        steps = make_steps(name, STEPS, group_id=f"kg{number // 8}", agent="killed")
        ending = make_ending(name, STEPS, value=float(number % 2))
        events = [("steps", step) for step in steps] + [("feedback", ending)]
        if number % 5 == 0:
            events += rng.sample(events, 2)  # sent twice
        if number % 7 == 0:
            rng.shuffle(events)  # out of order
        for topic, event in events:
            world.send(topic, event)
        world.producer.poll(0)
        if number % 30 == 29:
            victim = victims.pop()
            killed[victim] = stack.kill(victim)
            time.sleep(0.5)  # traffic goes on while it is down
        time.sleep(0.01)
    world.producer.flush()
    for victim, pid in killed.items():
        stack.wait_ready(victim, after_pid=pid)
    world.wait_for_value(
        "SELECT count() FROM trajectories FINAL WHERE agent = 'killed' AND complete AND success IS NOT NULL", count
    )
    stats = (
        "SELECT (sum(trajectories), sum(successes), sum(failures), sum(steps), sum(tool_calls), sum(reward_sum)) "
        "FROM trajectory_stats FINAL WHERE scope = 'cohort' AND agent = 'killed' AND tool = '{}'"
    )
    totals = (count, count // 2, count // 2, STEPS * count, STEPS * count, count / 2)
    world.wait_for_value(stats.format(""), totals)
    world.wait_for_value(stats.format("get"), totals)
    world.wait_for_value("SELECT count() FROM steps FINAL WHERE agent = 'killed'", STEPS * count)
    world.wait_for_value("SELECT uniqExact(source_key) FROM steps FINAL WHERE agent = 'killed'", STEPS * count)
    world.wait_for_value("SELECT count() FROM feedback FINAL WHERE startsWith(trajectory_id, 'k')", count)
    assert world.value("SELECT count() FROM dead_letters FINAL") == 0
    revisions = Counter(
        (label["trajectory_id"], label["revision"], label["event_id"])
        for label in world.records("labeled-trajectories")
    )
    # Each revision has one content, and revisions have no gaps.
    by_trajectory = Counter(trajectory for trajectory, _, _ in revisions)
    assert len({(trajectory, revision) for trajectory, revision, _ in revisions}) == len(revisions)
    assert all(max(r for t, r, _ in revisions if t == name) == n for name, n in by_trajectory.items())


def test_deleted_state_is_rebuilt_from_the_log(stack: Stack, world: World) -> None:
    names = [f"d{number}" for number in range(20)]
    world.send_trajectories(*names, steps=STEPS, agent="deleted")
    rows = "SELECT (count(), sum(revision), sum(reward)) FROM trajectories FINAL WHERE agent = 'deleted'"
    world.wait_for_value(rows, (20, 20, 20.0))
    stateful = JOBS[:3]
    for job in stateful:
        stack.stop_process(job)
    shutil.rmtree(stack.settings.paths.data / "state")
    for name in names:
        world.send("steps", *make_steps(name, STEPS, agent="deleted"))  # every step again
    for name in names[:5]:
        world.send("feedback", make_feedback(name, 0.0, number=1))  # late feedback for some
    world.producer.flush()
    for job in stateful:
        stack.start_process(job)
    world.wait_for_value(rows, (20, 25, 15.0))
    stats = (
        "SELECT (sum(trajectories), sum(successes), sum(steps)) FROM trajectory_stats FINAL "
        "WHERE scope = 'cohort' AND agent = 'deleted' AND tool = ''"
    )
    world.wait_for_value(stats, (20, 15, 60))
    labels = [label for label in world.records("labeled-trajectories") if label["agent"] == "deleted"]
    assert len(labels) == 25
    assert sum(step["agent"] == "deleted" for step in world.records("governed-steps")) == 60


def send_raw(world: World, topic: str, value: bytes) -> None:
    world.producer.send_encoded(topic, "bad", value, {"event_id": "x", "occurred_at_us": now_us()})


def test_invalid_input_becomes_dead_letters_and_stops_no_job(stack: Stack, world: World) -> None:
    [step] = make_steps("bad", 1)
    valid = world.codec.encode("steps", step)
    pids = [stack.pid(job) for job in JOBS]
    before = world.value("SELECT count() FROM dead_letters FINAL")
    send_raw(world, "steps", b"")
    send_raw(world, "steps", b"not Avro at all")
    send_raw(world, "steps", valid[:-7])
    send_raw(world, "steps", valid + b"\x00")
    send_raw(world, "steps", struct.pack(">bI", 0, 999_999) + valid[5:])
    send_raw(world, "steps", valid + b"\x00" * 950_000)
    send_raw(world, "feedback", valid)
    world.send("steps", step, key="worse")
    world.send("steps", step | {"loss_mask": [True]})
    world.send("steps", step | {"occurred_at_us": now_us() + 7_200_000_000})
    world.send("steps", step | {"consent": "none"})
    world.producer.flush()
    world.wait_for_value("SELECT count() FROM dead_letters FINAL", before + 10)
    found = world.store.query("SELECT error, count() FROM dead_letters FINAL GROUP BY error").result_rows
    errors = {"malformed": 5, "unknown_schema": 1, "oversized": 1, "wrong_key": 1, "invalid": 2}
    assert sorted(map(tuple, found)) == sorted(errors.items())
    oversized = world.store.query("SELECT value_bytes, job FROM dead_letters FINAL WHERE error = 'oversized'")
    assert oversized.result_rows == [(len(valid) + 950_000, "govern@1")]
    # Rejected records leave no content in the tables; later records are processed.
    world.send_and_flush("steps", make_steps("after-bad", 1)[0])
    world.wait_for_value("SELECT count() FROM steps FINAL WHERE trajectory_id = 'after-bad'", 1)
    assert world.value("SELECT count() FROM steps FINAL WHERE trajectory_id = 'bad'") == 0
    assert [stack.pid(job) for job in JOBS] == pids


def test_jobs_wait_for_a_registry_and_a_store_that_are_down(stack: Stack, world: World) -> None:
    for job in ("govern", "store-writer"):
        stack.stop_process(job)  # a fresh process has no schema in its cache
    stack.stop_process("registry")
    stack.stop_process("store")
    world.send_trajectories("waits", steps=STEPS)
    for job in ("govern", "store-writer"):
        stack.start_process(job)
    pids = {job: stack.pid(job) for job in JOBS}
    stack.start_process("registry")
    stack.start_process("store")
    world.wait_for_value("SELECT count() FROM trajectories FINAL WHERE trajectory_id = 'waits' AND success", 1)
    assert {job: stack.pid(job) for job in JOBS} == pids


def test_a_job_stops_cleanly(stack: Stack) -> None:
    stack.stop_process("label")
    lines = (stack.settings.paths.data / "logs" / "label.log").read_text().strip().splitlines()
    assert lines[-1].endswith("stopped")
