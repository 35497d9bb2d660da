"""Test the processor over a model of the log: floods, gaps, transaction markers, and state of earlier releases."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from owner_model import CODEC, DAY_MS, Entry, Log, Worker
from prometheus_client import REGISTRY
from stream_records import as_governed, make_ending, make_feedback, make_steps

from stepstream.core.process import Fatal
from stepstream.jobs import label
from stepstream.jobs.label import Label
from stepstream.jobs.runtime.fetch import Fetch
from stepstream.jobs.runtime.state import PartitionState
from stepstream.jobs.runtime.transaction import Refused
from stepstream.topics.events import new_trajectory_closed

STEPS, FEEDBACK, LABELS, CLOSURES = "governed-steps", "governed-feedback", "labeled-trajectories", "closures"


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(label, "sealing_codec", lambda _, **__: CODEC)
    worker = Worker("one", Log(), tmp_path, Label)
    worker.start()
    yield worker
    worker.kill()


def append(log: Log, topic: str, event: Any) -> None:
    log.append(topic, event["trajectory_id"], CODEC.encode(topic, event))


def fill(log: Log, *names: str) -> None:
    for name in names:
        for step in make_steps(name, 2):
            append(log, STEPS, as_governed(step))
        append(log, FEEDBACK, as_governed(make_ending(name, 2)))


def deliver_all(worker: Worker) -> None:
    while worker.deliver(10_000):
        pass


def test_a_flood_of_invalid_records_from_one_tenant_does_not_stop_other_tenants(worker: Worker) -> None:
    log, flood = worker.log, 1_100
    fill(log, "a", "b", "c", "d")
    worker.own()
    worker.deliver(2)
    for number in range(flood):
        [step] = make_steps("a", 1, seed=number, tenant="noisy")  # all claim to be step 0
        append(log, STEPS, as_governed(step))
        closed = new_trajectory_closed(
            event_id=f"{number}",
            occurred_at_us=0,
            trajectory_id=f"guessed-{number}",
            reason="idle",
            last_step_index=-1,
            job="label@1",
        )
        append(log, CLOSURES, closed)
    deliver_all(worker)
    assert len(log.events("dead-letters")) == flood - 1  # a guessed closure has no effect
    assert {one["trajectory_id"] for one in log.events(LABELS) if one["complete"]} == {"a", "b", "c", "d"}


def test_offsets_whose_end_a_broker_loses_again_are_settled_again(worker: Worker) -> None:
    fill(worker.log, "a")
    worker.log.pending_settles = 3
    worker.own()
    deliver_all(worker)
    assert worker.log.pending_settles == 0
    assert worker.log.events(LABELS)


def test_the_size_of_the_state_is_exported(worker: Worker) -> None:
    def entries() -> float:
        return REGISTRY.get_sample_value("stepstream_job_state_entries") or 0.0

    worker.own()
    processor = worker.processor
    assert processor is not None
    processor.tick()  # the processor of an earlier test exported another size
    for names in (("a",), ("b", "c", "d")):
        before = entries()
        fill(worker.log, *names)
        deliver_all(worker)
        processor.tick()
        assert entries() >= before + len(names)
    processor.close([0])
    processor.tick()
    assert entries() == 0


def test_missing_records_stop_the_process(worker: Worker) -> None:
    fill(worker.log, "a")
    worker.own()
    assert worker.processor is not None
    assert worker.member is not None
    records = worker.log.read(STEPS, 1, 2)
    with pytest.raises(Fatal, match=r"governed-steps\[0\] from offset 0 to 1"):
        worker.processor.process(Fetch(worker.member, records, {(STEPS, 0): (1, 2)}))
    assert not worker.log.committed


def test_records_that_are_already_folded_are_skipped(worker: Worker) -> None:
    fill(worker.log, "a")
    worker.own()
    deliver_all(worker)
    labels = worker.log.events(LABELS)
    worker.positions = dict.fromkeys(worker.positions, 0)
    deliver_all(worker)
    assert worker.log.events(LABELS) == labels


@pytest.mark.parametrize("ending", ["marker", "aborted record"])
def test_an_idle_partition_behind_offsets_without_a_record_decides_its_deadlines(worker: Worker, ending: str) -> None:
    for step in make_steps("a", 2):
        append(worker.log, STEPS, as_governed(step))
    if ending == "aborted record":
        worker.log.append(STEPS, "a", b"", "aborted")
    worker.log.topics[STEPS, 0].append(Entry(None, "committed"))
    worker.log.now_ms += DAY_MS
    worker.own()
    deliver_all(worker)
    assert worker.processor is not None
    worker.processor.tick()
    assert [closed["trajectory_id"] for closed in worker.log.events(CLOSURES)] == ["a"]
    assert worker.log.committed[STEPS, 0].offset == worker.log.end(STEPS)


def test_no_deadline_is_decided_while_an_open_transaction_may_hold_a_record(worker: Worker) -> None:
    for step in make_steps("a", 2):
        append(worker.log, STEPS, as_governed(step))
    pending = worker.log.append(STEPS, "a", worker.log.read(STEPS, 0, 1)[0].value or b"", "open")
    worker.log.now_ms += DAY_MS
    worker.own()
    deliver_all(worker)
    assert worker.processor is not None
    worker.processor.tick()
    assert worker.log.events(CLOSURES) == []
    pending.state = "aborted"
    deliver_all(worker)
    worker.processor.tick()
    assert len(worker.log.events(CLOSURES)) == 1


def test_a_stale_owner_cannot_write_over_newer_labels(worker: Worker, tmp_path: Path) -> None:
    """A is stopped after it folded; B takes over and publishes a newer revision; A goes on."""
    log = worker.log
    fill(log, "a")
    worker.own()
    newer = Worker("two", log, tmp_path, Label)
    worker.interrupt = lambda point: None if point != "beginning" else take_over()

    def take_over() -> None:
        worker.interrupt = lambda _point: None
        newer.own()
        deliver_all(newer)
        append(log, FEEDBACK, as_governed(make_feedback("a", 0.0, number=1)))
        deliver_all(newer)

    with pytest.raises(Refused):
        worker.deliver(10_000)
    rewards = [(one["revision"], one["reward"]) for one in log.events(LABELS)]
    assert rewards == [(1, 1.0), (2, 0.0)]
    worker.own()
    deliver_all(worker)
    assert [(one["revision"], one["reward"]) for one in log.events(LABELS)] == rewards
    newer.kill()


@pytest.mark.parametrize("committed", [False, True])
def test_outputs_that_an_earlier_release_kept_are_folded_again(worker: Worker, tmp_path: Path, committed: bool) -> None:
    """An earlier release wrote state first, with its outputs beside it; it was killed before it published them."""
    fill(worker.log, "a", "b")
    worker.own()
    worker.deliver(1)
    before = dict(worker.log.committed)
    deliver_all(worker)
    worker.kill()
    state = PartitionState(tmp_path / "one-0" / "label" / "0")
    state._db[b"\x00outbox"] = b"pickled"
    entry = orjson.loads(state._db[b"\x00offsets"] or b"")
    del entry["ticks"]
    state._db[b"\x00offsets"] = orjson.dumps(entry)
    state.close()
    worker.log.committed = before if committed else {}
    worker.log.topics[LABELS, 0] = []
    worker.own()
    deliver_all(worker)
    assert {one["trajectory_id"] for one in worker.log.events(LABELS)} == {"a", "b"}


def test_state_in_a_new_folder_is_rebuilt_without_publishing(worker: Worker, tmp_path: Path) -> None:
    fill(worker.log, "a", "b")
    worker.own()
    deliver_all(worker)
    labels = worker.log.events(LABELS)
    worker.kill()
    shutil.rmtree(tmp_path / "one-0")
    worker.own()
    deliver_all(worker)
    assert worker.log.events(LABELS) == labels
    append(worker.log, FEEDBACK, as_governed(make_feedback("a", 0.0, number=1)))
    deliver_all(worker)
    assert [one["revision"] for one in worker.log.events(LABELS) if one["trajectory_id"] == "a"][-1] == 2
