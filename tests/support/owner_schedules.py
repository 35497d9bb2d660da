"""Run schedules of owners, crashes, pauses and aborted transactions, and compare what a job published in effect.

Two workers share two partitions. Meanwhile, consents and reward specifications change. Each seed is one schedule of
one job; `make test` runs 20,000 of them.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from owner_databases import open_databases
from owner_decisions import Decisions
from owner_model import CODEC, T0_MS, Entry, Killed, Log, Worker
from stream_records import as_governed, make_ending, make_feedback, make_steps

from stepstream.config import Settings
from stepstream.core.process import Fatal
from stepstream.jobs import label
from stepstream.jobs.govern import Govern
from stepstream.jobs.governance.active_policy import ActivePolicies
from stepstream.jobs.measure import Measure
from stepstream.jobs.runtime.fold import FoldJob
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.jobs.runtime.snapshot_manifest import decode_manifest
from stepstream.jobs.runtime.transaction import Refused

SCHEDULES = int(os.environ.get("OWNER_SCHEDULES", "20000"))
FIRST = int(os.environ.get("OWNER_FIRST_SEED", "0"))
PART = 500
"""Schedules of one test."""
PARTITIONS = 2
NOW_US = T0_MS * 1000
LONG_MS = 60_000
"""Longer than each deadline."""
Events = tuple[tuple[str, str, bytes], ...]
NEWEST: dict[str, Callable[[Any], Any]] = {
    "labeled-trajectories": lambda event: (event["trajectory_id"], event["revision"]),
    "trajectory-stats": lambda event: (event["scope"], event["key"], event["version"]),
    "component-stats": lambda event: (event["key"], event["version"]),
}
"""Key and number of an event's state, by topic; a state has one event."""


def script() -> list[tuple[str, Any]]:
    """Return steps and feedback of four trajectories, in which two events come twice. Only time closes the last one."""
    events: list[tuple[str, Any]] = []
    at: Any = {"occurred_at_us": NOW_US}
    for name in ("a", "b", "c", "d"):
        steps = make_steps(name, 3, at_us=NOW_US - 10_000_000, user=f"user-{name}")
        events += [("steps", step) for step in steps]
        events += [("feedback", make_ending(name, 3, **at))] if name != "d" else []
        events += [("feedback", make_feedback(name, 0.0, number=1, **at))]
    events += [("feedback", make_feedback("a", 0.5, number=2, **at)), events[0], events[3]]
    return events


def encoded(topic: str, event: Any) -> tuple[str, str, bytes]:
    return topic, event.get("group_id") or event["trajectory_id"], CODEC.encode(topic, event)


@cache
def raw_events() -> Events:
    return tuple(encoded(topic, event) for topic, event in script())


@cache
def governed_events() -> Events:
    return tuple(encoded(f"governed-{topic}", as_governed(event)) for topic, event in script())


@cache
def labels() -> Events:
    """The labels of all revisions, as `label` publishes them if each record is a batch."""
    with scratch_folder() as folder, one_job():
        log = Log()
        worker = Worker("one", log, folder, Decisions().make_label)
        worker.own()
        for event in governed_events():
            log.append(*event)
            finish(worker)
        worker.kill()
    return tuple(encoded("labeled-trajectories", event) for event in log.events("labeled-trajectories"))


def make_job(job: str, decisions: Decisions, log: Log) -> Callable[[Settings], FoldJob]:
    def make_govern(settings: Settings) -> FoldJob:
        policies = ActivePolicies(b"key", {}, {})
        return Govern(settings, policies, lambda *_: False, now_us=lambda: log.now_ms * 1000)

    return {"govern": make_govern, "label": decisions.make_label, "measure": Measure}[job]


EVENTS: dict[str, Callable[[], Events]] = {
    "govern": raw_events,
    "label": governed_events,
    "measure": labels,
}
"""Input of each job."""


def parts(job: str) -> list[range]:
    """Return the seeds of a job's schedules, up to `PART` at a time."""
    jobs = list(EVENTS)
    seeds = range(FIRST + (jobs.index(job) - FIRST) % len(jobs), FIRST + SCHEDULES, len(jobs))
    return [seeds[begin : begin + PART] for begin in range(0, len(seeds), PART)]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="stepstream-owners-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def one_job() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label, "sealing_codec", lambda _, **__: CODEC)
        yield


def finish(worker: Worker) -> None:
    """Process everything, let all deadlines pass, and take the decisions in time."""
    assert worker.processor is not None
    for _ in range(20):
        worker.log.now_ms += LONG_MS
        before = worker.log.size()
        while worker.deliver(1_000):
            pass
        worker.processor.tick()
        if worker.log.size() == before and not worker.deliver(1_000):
            return
    raise AssertionError("the job does not come to rest")


class Schedule:
    """Runs one schedule of a job's workers."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.job = list(EVENTS)[seed % len(EVENTS)]
        self.log, self.pending = Log(PARTITIONS), list(EVENTS[self.job]())
        self.decisions = Decisions()
        make = make_job(self.job, self.decisions, self.log)
        if self.job != "measure":  # labels of a trajectory are in order
            self.rng.shuffle(self.pending)
        self.workers = [Worker(name, self.log, folder, make) for name in ("one", "two")]
        self.depth, self.folder = 0, folder
        for worker in self.workers:
            worker.interrupt = partial(self._interrupt, worker)
            worker.outcome = lambda: self.rng.choice(["committed", "aborted"])

    def run(self) -> None:
        while self.pending:
            self._act()
        for _ in range(self.rng.randrange(20)):  # most have labels by now, which decisions revise
            self._act()
        self.log.settle(lambda: "aborted")
        for worker in self.workers:
            worker.interrupt = lambda _point: None
        last = self.rng.choice(self.workers)
        if self.decisions.end_idle_changes():
            last.kill()  # it may have started with the other setting
        self._attempt(last, last.own)
        self.decisions.read_all()
        finish(last)
        for worker in self.workers:
            worker.kill()

    def _act(self) -> None:
        self.log.now_ms += self.rng.choice([0, 1, 10, 400, 2_000])
        worker = self.rng.choice(self.workers)
        action = self.rng.choices(
            [
                self._append,
                self._append_aborted,
                self._own,
                self._deliver,
                self._tick,
                self._snapshot,
                self._delete_old,
                self._kill,
                self._decide,
            ],
            [6, 1, 2, 8, 4, 2, 0.5, 1, 3],
        )[0]
        action(worker)

    def _append(self, _worker: Worker) -> None:
        for _ in range(self.rng.randint(1, 4)):
            if self.pending:
                self.log.append(*self.pending.pop(0))

    def _append_aborted(self, _worker: Worker) -> None:
        """Another producer's transaction fails: its records are on the log and must have no effect."""
        if self.pending:
            self.log.append_aborted(*self.pending[0])

    def _decide(self, _worker: Worker) -> None:
        """Change a consent, the specification, or whether new processes close idle trajectories."""
        self.decisions.change(self.rng)

    def _own(self, worker: Worker) -> None:
        """A worker joins the group: alone, or with the other one, which notices later."""
        if worker.processor is None:
            worker.start()
        numbers = self.rng.sample(range(PARTITIONS), PARTITIONS)
        shares = {worker: numbers}
        [other] = [one for one in self.workers if one is not worker]
        if other.processor is not None and self.rng.random() < 0.5:
            shares = {worker: numbers[:1], other: numbers[1:]}
        self.log.rebalance(shares)
        self._attempt(worker, worker.join)

    def _notice(self, worker: Worker) -> None:
        if worker.assigned is not None and self.rng.random() < 0.8:
            self._attempt(worker, worker.join)

    def _deliver(self, worker: Worker) -> None:
        self._notice(worker)
        if worker.member is not None:
            self._attempt(worker, lambda: worker.deliver(self.rng.randint(1, 4)))

    def _tick(self, worker: Worker) -> None:
        self._notice(worker)
        self.decisions.read(self.rng)
        if worker.processor is not None:
            self._attempt(worker, worker.processor.tick)

    def _snapshot(self, worker: Worker) -> None:
        if worker.processor is not None and worker.member is not None:
            self._attempt(worker, worker.snapshot)

    def _delete_old(self, _worker: Worker) -> None:
        """Retention deletes the records before each partition's newest snapshot."""
        newest: dict[int, Path] = {}
        for path in sorted(self.folder.glob("snapshots/*/*/*/manifests/*.json"), key=lambda path: path.name):
            newest[int(path.parts[-3])] = path
        for number, path in newest.items():
            for topic, offset in decode_manifest(path.read_bytes()).position.items():
                self.log.delete_before(topic, offset, number)

    def _kill(self, worker: Worker) -> None:
        worker.kill(with_folder=self.rng.random() < 0.3)

    def _attempt(self, worker: Worker, call: Callable[[], object]) -> None:
        process = worker.processor
        try:
            call()
        except (Killed, Fatal):
            if worker.processor is process or process is None:
                worker.kill(with_folder=self.rng.random() < 0.3)
        except Refused:
            worker.member = None  # until it joins again
        except Cancelled:
            worker.member = None
            if self.rng.random() < 0.7:  # a tick was due before the partitions are released
                self._decide(worker)
                self._tick(worker)
            if worker.processor is process and worker.member is None:
                worker.leave()

    def _interrupt(self, caller: Worker, point: str) -> None:
        """Kill or cancel the worker that calls the broker, or pause it while the other one acts."""
        chance = self.rng.random()
        if chance < 0.08:
            raise Killed
        if chance < 0.13 and point in ("beginning", "published"):
            raise Cancelled
        if chance < 0.28 and self.depth == 0:
            self.depth = 1
            try:
                [other] = [worker for worker in self.workers if worker is not caller]
                for _ in range(self.rng.randint(1, 4)):
                    self.rng.choice([self._own, self._deliver, self._append, self._tick])(other)
            finally:
                self.depth = 0


def check_all(seeds: Iterable[int]) -> None:
    with one_job(), scratch_folder() as kept, open_databases(kept) as databases:
        for seed in seeds:
            with scratch_folder() as folder:
                check(seed, folder)
            databases.clear()


def check(seed: int, folder: Path) -> None:
    schedule = Schedule(seed, folder)
    schedule.run()
    log = schedule.log
    reference = Log(PARTITIONS)
    reference.now_ms = log.now_ms
    worker = Worker("reference", reference, folder, make_job(schedule.job, schedule.decisions, reference))
    worker.start()
    inputs = set(worker.inputs)
    for (topic, number), entries in log.topics.items():
        if topic in inputs:
            reference.topics[topic, number] = [Entry(entry.record, entry.state) for entry in entries]
    log.begins.clear()  # the deleted records count
    size = reference.size(inputs)
    worker.own()
    finish(worker)
    worker.kill()
    assert reference.size(inputs) == size, f"seed {seed}: a decision is missing"
    outputs = {topic for topic, _ in log.topics.keys() | reference.topics.keys()} - inputs
    for topic in outputs | inputs & {"closures"}:
        events, expected = log.events(topic), reference.events(topic)
        ids = [event["event_id"] for event in events]
        assert len(ids) == len(set(ids)), f"seed {seed}: {topic} has an event twice"
        if topic in NEWEST:
            said = [NEWEST[topic](event) for event in events]
            assert len(said) == len(set(said)), f"seed {seed}: {topic} says two things about one state"
            assert newest(topic, events) == newest(topic, expected), f"seed {seed}: {topic}"
        elif topic not in inputs and not (topic == "dead-letters" and schedule.job == "label"):
            # A closure whose trajectory has no step yet is a dead letter; that depends on how the inputs interleave.
            assert (len(events), by_id(events)) == (len(expected), by_id(expected)), f"seed {seed}: {topic}"


def newest(topic: str, events: list[Any]) -> dict[Any, Any]:
    """Return the last event of each key, without what depends on the number of batches."""
    by_key: dict[Any, Any] = {}
    last: dict[Any, int] = {}
    for event in events:
        *key, number = NEWEST[topic](event)
        assert number > last.get(tuple(key), 0), f"{topic}: {key} goes back to {number}"
        last[tuple(key)] = number
        varying = {"event_id", "revision", "version"}
        by_key[tuple(key)] = {name: value for name, value in event.items() if name not in varying}
    return by_key


def by_id(events: list[Any]) -> dict[str, Any]:
    return {event["event_id"]: event for event in events}
