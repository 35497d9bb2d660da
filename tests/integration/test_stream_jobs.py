"""The four jobs over a real broker, registry and store: nothing lost, nothing counted twice, whatever dies."""

import random
import shutil
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stack_fixtures import changed
from stream_records import make_ending, make_feedback, make_steps

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse import connect
from stepstream.topics.codec import codec_of
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.ids import now_us
from stepstream.topics.producer import EventProducer

JOBS = ("govern", "label", "measure", "store-writer")
PATIENCE_S = 90.0
STEPS = 3

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def stack(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = isolated(base_settings, tmp_path_factory.mktemp("jobs"))
    # On a busy machine a killed job is away for longer than steps are waited for: that is to close no trajectory.
    settings = changed(settings, stack={"start_deadline_s": 240.0}, label={"end_grace_s": 300.0})
    with Stack(settings, ["broker", "registry", "store", *JOBS]) as running:
        yield running


class Log:
    """What the tests send, and what the stack makes of it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.codec = codec_of(settings)
        self.producer = EventProducer(settings.kafka, self.codec, "test", linger_ms=0)
        self.store = connect(settings.clickhouse, database=settings.clickhouse.database)

    def send(self, topic: str, event: Any, **how: Any) -> None:
        self.producer.send(topic, how.get("key", event["trajectory_id"]), event)

    def send_raw(self, topic: str, key: str, value: bytes) -> None:
        self.producer.send_encoded(topic, key, value, {"event_id": "x", "occurred_at_us": now_us()})

    def one(self, query: str) -> Any:
        return self.store.query(query).result_rows[0][0]

    def until(self, query: str, expected: Any) -> None:
        """Waits until a query gives one expected value."""
        wait_until(lambda: self.one(query), expected)

    def read(self, topic: str) -> list[Any]:
        """All of a topic so far."""
        events = []
        with EventConsumer(self.settings.kafka, self.codec) as consumer:
            consumer.follow([topic])
            left = sum(consumer.end_offsets(topic).values())
            while left > 0:
                batch = consumer.poll(1000, 1.0)
                events += [event.record for event in batch]
                left -= len(batch)
        return events


def wait_until(ask: Callable[[], Any], expected: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (seen := ask()) != expected:
        assert time.monotonic() < deadline, f"still {seen}, not {expected}, after {PATIENCE_S:g} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def log(stack: Stack) -> Iterator[Log]:
    opened = Log(stack.settings)
    yield opened
    opened.codec.close()
    opened.store.close_connections()
    opened.store.close()


def test_nothing_is_lost_or_counted_twice_while_every_job_is_killed(stack: Stack, log: Log) -> None:
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
            log.send(topic, event)
        log.producer.poll(0)
        if number % 30 == 29:
            victim = victims.pop()
            killed[victim] = stack.kill(victim)
            time.sleep(0.5)  # traffic goes on while it is down
        time.sleep(0.01)
    log.producer.flush()
    for victim, pid in killed.items():
        stack.wait_ready(victim, PATIENCE_S, after_pid=pid)
    log.until(
        "SELECT count() FROM trajectories FINAL WHERE agent = 'killed' AND complete AND success IS NOT NULL", count
    )
    stats = (
        "SELECT (sum(trajectories), sum(successes), sum(failures), sum(steps), sum(tool_calls), sum(reward_sum)) "
        "FROM trajectory_stats FINAL WHERE scope = 'cohort' AND agent = 'killed' AND tool = '{}'"
    )
    whole = (count, count // 2, count // 2, STEPS * count, STEPS * count, count / 2)
    log.until(stats.format(""), whole)
    log.until(stats.format("get"), whole)
    log.until("SELECT count() FROM steps FINAL WHERE agent = 'killed'", STEPS * count)
    log.until("SELECT uniqExact(source_event_id) FROM steps FINAL WHERE agent = 'killed'", STEPS * count)
    log.until("SELECT count() FROM feedback FINAL WHERE startsWith(trajectory_id, 'k')", count)
    assert log.one("SELECT count() FROM dead_letters FINAL") == 0
    revisions = Counter(
        (label["trajectory_id"], label["revision"], label["event_id"]) for label in log.read("labeled-trajectories")
    )
    # One revision of one trajectory never says two things, and revisions have no gaps.
    by_trajectory = Counter(trajectory for trajectory, _, _ in revisions)
    assert len({(trajectory, revision) for trajectory, revision, _ in revisions}) == len(revisions)
    assert all(max(r for t, r, _ in revisions if t == name) == n for name, n in by_trajectory.items())


def test_deleted_state_is_rebuilt_from_the_log(stack: Stack, log: Log) -> None:
    names = [f"d{number}" for number in range(20)]
    for name in names:
        for step in make_steps(name, STEPS, agent="deleted"):
            log.send("steps", step)
        log.send("feedback", make_ending(name, STEPS))
    log.producer.flush()
    rows = "SELECT (count(), sum(revision), sum(reward)) FROM trajectories FINAL WHERE agent = 'deleted'"
    log.until(rows, (20, 20, 20.0))
    stateful = JOBS[:3]
    for job in stateful:
        stack.stop_process(job)
    shutil.rmtree(stack.settings.paths.data / "state")
    for name in names:
        for step in make_steps(name, STEPS, agent="deleted"):
            log.send("steps", step)  # all of it once more
    for name in names[:5]:
        log.send("feedback", make_feedback(name, 0.0, number=1))  # and late truth about some
    log.producer.flush()
    for job in stateful:
        stack.start_process(job, PATIENCE_S)
    log.until(rows, (20, 25, 15.0))
    stats = (
        "SELECT (sum(trajectories), sum(successes), sum(steps)) FROM trajectory_stats FINAL "
        "WHERE scope = 'cohort' AND agent = 'deleted' AND tool = ''"
    )
    log.until(stats, (20, 15, 60))
    labels = [label for label in log.read("labeled-trajectories") if label["agent"] == "deleted"]
    assert len(labels) == 25
    assert sum(step["agent"] == "deleted" for step in log.read("governed-steps")) == 60


def test_bad_input_becomes_dead_letters_and_stops_nothing(stack: Stack, log: Log) -> None:
    [step] = make_steps("bad", 1)
    sound = log.codec.encode("steps", step)
    pids = [stack.pid(job) for job in JOBS]
    before = log.one("SELECT count() FROM dead_letters FINAL")
    log.send_raw("steps", "bad", b"")
    log.send_raw("steps", "bad", b"not Avro at all")
    log.send_raw("steps", "bad", sound[:-7])
    log.send_raw("steps", "bad", sound + b"\x00")
    log.send_raw("steps", "bad", struct.pack(">bI", 0, 999_999) + sound[5:])
    log.send_raw("steps", "bad", sound + b"\x00" * 950_000)
    log.send_raw("feedback", "bad", sound)
    log.send("steps", step, key="worse")
    log.send("steps", step | {"loss_mask": [True]})
    log.send("steps", step | {"occurred_at_us": now_us() + 7_200_000_000})
    log.send("steps", step | {"consent": "none"})
    log.producer.flush()
    log.until("SELECT count() FROM dead_letters FINAL", before + 10)
    errors = dict(log.store.query("SELECT error, count() FROM dead_letters FINAL GROUP BY error").result_rows)
    assert errors == {"malformed": 5, "unknown_schema": 1, "oversized": 1, "wrong_key": 1, "invalid": 2}
    oversized = log.store.query("SELECT value_bytes, job FROM dead_letters FINAL WHERE error = 'oversized'")
    assert oversized.result_rows == [(len(sound) + 950_000, "govern@1")]
    # What may not be passed on leaves no trace of its content; what follows it works.
    log.send("steps", make_steps("after-bad", 1)[0])
    log.producer.flush()
    log.until("SELECT count() FROM steps FINAL WHERE trajectory_id = 'after-bad'", 1)
    assert log.one("SELECT count() FROM steps FINAL WHERE trajectory_id = 'bad'") == 0
    assert [stack.pid(job) for job in JOBS] == pids


def test_jobs_wait_for_a_registry_and_a_store_that_are_down(stack: Stack, log: Log) -> None:
    for job in ("govern", "store-writer"):
        stack.stop_process(job)  # a fresh process has no schema in its cache
    stack.stop_process("registry")
    stack.stop_process("store")
    for step in make_steps("waits", STEPS):
        log.send("steps", step)
    log.send("feedback", make_ending("waits", STEPS))
    log.producer.flush()
    for job in ("govern", "store-writer"):
        stack.start_process(job, PATIENCE_S)
    pids = {job: stack.pid(job) for job in JOBS}
    stack.start_process("registry", PATIENCE_S)
    stack.start_process("store", PATIENCE_S)
    log.until("SELECT count() FROM trajectories FINAL WHERE trajectory_id = 'waits' AND success", 1)
    assert {job: stack.pid(job) for job in JOBS} == pids


def test_a_job_ends_cleanly_when_asked(stack: Stack) -> None:
    began = time.monotonic()
    stack.stop_process("label")
    assert time.monotonic() - began < 10
    words = (stack.settings.paths.data / "logs" / "label.log").read_text().strip().splitlines()
    assert words[-1].endswith("stopped")
