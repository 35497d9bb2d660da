"""Test snapshots over the model of the log: restored and completed, refused if damaged or foreign, removed in time."""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from owner_model import CODEC, Log, Worker
from prometheus_client import REGISTRY
from stream_records import as_governed, make_ending, make_feedback, make_steps

from stepstream.config import LabelSettings, Settings
from stepstream.core.process import Fatal
from stepstream.jobs import label
from stepstream.jobs.label import Label
from stepstream.jobs.runtime import snapshots
from stepstream.jobs.runtime.log_reader import Committed

STEPS, FEEDBACK, LABELS = "governed-steps", "governed-feedback", "labeled-trajectories"


def make_label(settings: Settings) -> Label:
    return Label(settings.model_copy(update={"label": LabelSettings(keep_days=100_000)}))


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(label, "sealing_codec", lambda _, **__: CODEC)
    worker = Worker("one", Log(), tmp_path, make_label)
    yield worker
    worker.kill()


@pytest.fixture
def count() -> Callable[[str], float]:
    """Return how many snapshots had a result since the test began."""
    before: dict[str, float] = {}

    def now(result: str) -> float:
        return REGISTRY.get_sample_value("stepstream_job_snapshots_total", {"result": result}) or 0.0

    for result in ("written", "restored", "refused", "failed"):
        before[result] = now(result)
    return lambda result: now(result) - before[result]


def replayed(topic: str) -> float:
    return REGISTRY.get_sample_value("stepstream_job_replayed_total", {"topic": topic}) or 0.0


def fill(log: Log, *names: str) -> None:
    for name in names:
        events: list[tuple[str, Any]] = [(STEPS, step) for step in make_steps(name, 2)]
        for topic, event in [*events, (FEEDBACK, make_ending(name, 2))]:
            log.append(topic, name, CODEC.encode(topic, as_governed(event)))


def work(worker: Worker, *names: str) -> None:
    """Let the owner process new trajectories."""
    fill(worker.log, *names)
    while worker.deliver(10_000):
        pass


def labels(worker: Worker) -> list[tuple[str, int, float]]:
    return [(one["trajectory_id"], one["revision"], one["reward"]) for one in worker.log.events(LABELS)]


def revise(worker: Worker, name: str) -> None:
    feedback = as_governed(make_feedback(name, 0.0, number=1))
    worker.log.append(FEEDBACK, name, CODEC.encode(FEEDBACK, feedback))
    while worker.deliver(10_000):
        pass


def test_a_lost_folder_is_restored_from_a_snapshot_and_the_records_after_it(
    worker: Worker, count: Callable[[str], float]
) -> None:
    worker.own()
    work(worker, "a", "b")
    worker.snapshot()
    work(worker, "c")
    worker.kill(with_folder=True)
    before = replayed(STEPS)
    worker.own()
    assert (count("written"), count("restored"), replayed(STEPS) - before) == (1, 1, 2)
    for name in ("a", "b", "c"):
        revise(worker, name)
    assert labels(worker)[3:] == [(name, 2, 0.0) for name in ("a", "b", "c")]


def test_a_state_is_restored_from_a_store_that_is_no_folder(worker: Worker, count: Callable[[str], float]) -> None:
    address = f"memory://snapshots-{uuid.uuid4()}"
    worker.settings = {"snapshots": address, "snapshot_keep": 1}
    worker.own()
    for name in ("a", "b", "c"):
        work(worker, name)
        worker.snapshot()
    worker.kill(with_folder=True)
    worker.own()
    assert (count("written"), count("restored"), count("failed")) == (3, 1, 0)
    for name in ("a", "b", "c"):
        revise(worker, name)
    assert labels(worker)[3:] == [(name, 2, 0.0) for name in ("a", "b", "c")]
    store = MemoryFileSystem()
    files = [path for path in store.find(address.removeprefix("memory:/")) if "/files/" in path]
    assert files
    for file in files:
        store.pipe_file(file, b"damaged")
    worker.kill(with_folder=True)
    worker.own()
    assert (count("restored"), count("refused")) == (1, 3), "damaged ones are found, and the log is folded instead"


def test_an_idle_partition_outlives_its_records(worker: Worker, count: Callable[[str], float]) -> None:
    """Its newest snapshot is at its end, also behind the markers that came later: retention takes nothing it needs."""
    worker.own()
    work(worker, "a")
    worker.snapshot()
    for topic in (STEPS, FEEDBACK):
        worker.log.append_aborted(topic, "a", b"")
    worker.deliver(10_000)
    worker.snapshot()
    assert count("written") == 2, "the position moved over the markers"
    for topic in (STEPS, FEEDBACK):
        worker.log.delete_before(topic, worker.log.end(topic))
    worker.snapshot()
    assert count("written") == 2, "idle"
    worker.kill(with_folder=True)
    worker.own()
    assert count("restored") == 1
    revise(worker, "a")
    assert labels(worker)[-1] == ("a", 2, 0.0)


def test_an_up_to_date_state_is_not_replaced(worker: Worker, count: Callable[[str], float]) -> None:
    worker.own()
    work(worker, "a")
    worker.snapshot()
    work(worker, "b")
    worker.kill()
    worker.own()
    assert count("restored") == 0


def files(tmp_path: Path, part: str) -> list[Path]:
    return sorted(tmp_path.glob(f"snapshots/label/*/0/{part}/*"))


def two_snapshots(worker: Worker) -> None:
    worker.own()
    work(worker, "a", "b")
    worker.snapshot()
    work(worker, "c")
    worker.snapshot()
    worker.kill(with_folder=True)


def check_revisions(worker: Worker) -> None:
    """Check that the state knows all trajectories as they were published."""
    before = len(labels(worker))
    for name in ("a", "b", "c"):
        revise(worker, name)
    assert labels(worker)[before:] == [(name, 2, 0.0) for name in ("a", "b", "c")]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_manifest(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | fields))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a torn manifest": lambda newest: newest.write_bytes(newest.read_bytes()[:100]),
    "another log": lambda newest: change_manifest(newest, log="other"),
    "another job": lambda newest: change_manifest(newest, job="govern"),
    "another version": lambda newest: change_manifest(newest, version="0"),
    "a later format": lambda newest: change_manifest(newest, format=2),
    "a file elsewhere": lambda newest: change_manifest(
        newest, files=[{"name": "../x", "object_name": "x", "sha256": "", "size_bytes": 0}]
    ),
    "offsets of other content": lambda newest: change_manifest(newest, position={STEPS: 5, FEEDBACK: 2}),
    "offsets ahead": lambda newest: change_manifest(newest, position={STEPS: 999}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_snapshot_that_cannot_be_used_is_refused_and_the_one_before_is_restored(
    worker: Worker, tmp_path: Path, count: Callable[[str], float], damage: str
) -> None:
    two_snapshots(worker)
    newest = max(files(tmp_path, "manifests"), key=lambda path: path.stat().st_mtime_ns)
    DAMAGES[damage](newest)
    worker.own()
    assert (count("refused"), count("restored")) == (1, 1)
    check_revisions(worker)


def test_damaged_files_are_refused_folded_again_from_the_log_and_never_named_again(
    worker: Worker, tmp_path: Path, count: Callable[[str], float]
) -> None:
    two_snapshots(worker)
    for path in files(tmp_path, "files"):
        flip(path) if path.stat().st_size else path.unlink()
    worker.own()
    assert (count("refused"), count("restored")) == (2, 0)
    check_revisions(worker)
    worker.snapshot()
    worker.kill(with_folder=True)
    worker.own()
    assert count("restored") == 1


def test_a_snapshot_ahead_of_the_committed_offsets_is_not_restored(
    worker: Worker, count: Callable[[str], float]
) -> None:
    """An operator sets the group's offsets back."""
    worker.own()
    work(worker, "a", "b")
    worker.snapshot()
    worker.kill(with_folder=True)
    worker.log.committed = {
        partition: Committed(one.offset - 1, one.metadata) for partition, one in worker.log.committed.items()
    }
    worker.own()
    assert (count("refused"), count("restored")) == (1, 0)
    worker.kill(with_folder=True)
    worker.log.committed = {partition: Committed(one.offset, "0") for partition, one in worker.log.committed.items()}


def test_a_snapshot_that_cannot_be_written_stops_nothing(
    worker: Worker, tmp_path: Path, count: Callable[[str], float]
) -> None:
    (tmp_path / "snapshots").write_text("a file where a folder belongs")
    worker.own()
    work(worker, "a", "b")
    worker.snapshot()
    assert (count("written"), count("failed")) == (0, 1)
    assert [path for path in worker.state.iterdir() if path.name.startswith(".")] == []
    (tmp_path / "snapshots").unlink()
    worker.snapshot()
    assert count("written") == 1


def test_a_store_that_cannot_be_read_leaves_the_state_to_the_log(
    worker: Worker, tmp_path: Path, count: Callable[[str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_RESTORE_RETRY_S", 0.0)
    two_snapshots(worker)
    newest = files(tmp_path, "manifests")[-1]
    newest.unlink()
    newest.mkdir()
    worker.own()
    assert (count("failed"), count("restored")) == (1, 0)
    check_revisions(worker)


def test_only_changed_states_are_uploaded(worker: Worker, count: Callable[[str], float]) -> None:
    worker.own()
    worker.snapshot()
    assert count("written") == 0
    work(worker, "a")
    worker.snapshot()
    worker.snapshot()
    assert count("written") == 1


def test_a_log_that_begins_after_the_state_is_restored_from_a_snapshot_or_refused(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.own()
    work(worker, "a", "b")
    worker.snapshot()
    worker.log.delete_before(STEPS, 4)
    worker.log.delete_before(FEEDBACK, 2)
    work(worker, "c")
    worker.kill(with_folder=True)
    worker.own()
    check_revisions(worker)
    worker.kill(with_folder=True)
    worker.log.delete_before(STEPS, 5)
    with pytest.raises(Fatal, match=r"at offset 4 of governed-steps, but the log begins at 5.*MISSING_HISTORY=accept"):
        worker.own()
    worker.kill()
    worker.settings = {"missing_history": "accept"}
    worker.own()
    lost = REGISTRY.get_sample_value("stepstream_job_history_lost_total", {"topic": STEPS})
    assert lost == 1
    work(worker, "d")
    assert labels(worker)[-1] == ("d", 1, 1.0)


def test_records_that_were_deleted_before_the_job_read_them_are_an_error(worker: Worker) -> None:
    worker.own()
    work(worker, "a")
    fill(worker.log, "b")
    worker.kill()
    worker.log.delete_before(STEPS, 3)
    with pytest.raises(Fatal, match="at offset 2 of governed-steps, but the log begins at 3"):
        worker.own()


def test_a_job_that_starts_for_the_first_time_reads_a_cut_log_from_its_beginning(worker: Worker) -> None:
    fill(worker.log, "a", "b")
    worker.log.delete_before(STEPS, 2)
    worker.log.delete_before(FEEDBACK, 1)
    worker.own()
    work(worker)
    assert labels(worker) == [("b", 1, 1.0)]
