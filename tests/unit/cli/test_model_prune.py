"""Check `stepstream models prune` against a log in memory: what it keeps of a promoted version, and shared files."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from version_log import VersionLog, write_version

from stepstream.cli import model_prune
from stepstream.config import Settings
from stepstream.learner import lineage
from stepstream.topics import codec, producer, table
from stepstream.topics.codec import RegistryUnavailable
from stepstream.topics.events import Rollout, new_checkpoint, new_rollout, new_worker_status
from stepstream.topics.ids import now_us
from stepstream.versions import follower


class Log(VersionLog):
    """The log, its producer, the follower and the table of workers."""

    def __init__(self) -> None:
        super().__init__()
        self.at_flush: Callable[[], None] = lambda: None

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None: ...

    def send(self, _topic: str, _key: str, record: Any) -> None:
        self.events.append(record)

    def flush(self) -> None:
        self.at_flush()

    def close(self) -> None: ...

    def wait_current(self, _timeout_s: float) -> bool:
        return True


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    for number in range(10):
        files = write_version(tmp_path / str(number))
        log.events.append(
            new_checkpoint(
                event_id=f"e{number}", occurred_at_us=0, model="m", version=number, files=files, weights_sha256="",
                uri=(tmp_path / str(number)).as_uri(), code_version="", parent_version=number - 1 if number else None,
            )
        )  # fmt: skip

    @contextmanager
    def open_log() -> Iterator[Settings]:
        yield Settings()

    def read_versions(*_: object) -> lineage.Versions:
        versions = lineage.Versions()
        for event in log.events:
            versions.fold(event)
        return versions

    monkeypatch.setattr(model_prune, "open_log", open_log)
    monkeypatch.setattr(model_prune, "wait_read", lambda *_: None)
    for module, name in (
        (follower, "VersionFollower"),
        (table, "Table"),
        (producer, "EventProducer"),
        (codec, "Codec"),
    ):
        monkeypatch.setattr(module, name, lambda *_: log)
    monkeypatch.setattr(lineage, "read_versions", read_versions)
    return log


def prune(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(model_prune.prune, ["m", "--json", *options])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def decision(stable: int, previous: int | None = None) -> Rollout:
    return new_rollout(
        event_id="r", occurred_at_us=1, model="m", stable_version=stable, previous_stable_version=previous
    )


def test_a_promoted_version_and_the_one_before_keep_their_training_state(log: Log, tmp_path: Path) -> None:
    log.rollouts.append(decision(5, 3))
    removed = prune("--keep-versions", "2", "--keep-training", "1")
    assert (removed["versions"], removed["training"]) == ([1, 2, 4, 6, 7], [0, 8])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3", "5", "8", "9"]
    both = ["training", "weights"]
    assert [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("3", "5")] == [both, both]


def test_files_that_another_present_version_names_stay(log: Log, tmp_path: Path) -> None:
    log.events[9]["uri"] = log.events[4]["uri"]
    assert 4 in prune("--keep-versions", "2", "--keep-training", "1")["versions"]
    assert sorted(path.name for path in (tmp_path / "4").iterdir()) == ["training", "weights"]


def test_a_version_that_a_decision_names_meanwhile_is_put_back(log: Log, tmp_path: Path) -> None:
    log.at_flush = lambda: log.rollouts.append(decision(3))
    removed = prune("--keep-versions", "2", "--keep-training", "1")
    assert (removed["versions"], removed["training"]) == ([1, 2, 4, 5, 6, 7], [0, 8])
    assert sorted(path.name for path in (tmp_path / "3").iterdir()) == ["training", "weights"]
    assert log.checkpoints("m")[3]["removed_at_us"] is None


@pytest.mark.parametrize("version_format", ["delta", "lora"])
def test_a_version_from_which_one_published_meanwhile_is_completed_is_put_back(
    log: Log, tmp_path: Path, version_format: str
) -> None:
    files = write_version(tmp_path / "10")
    new = new_checkpoint(
        event_id="e10", occurred_at_us=0, model="m", version=10, files=files, weights_sha256="",
        uri=(tmp_path / "10").as_uri(), code_version="", parent_version=9, base_version=3, format=version_format,
    )  # fmt: skip
    log.at_flush = lambda: log.events.append(new)
    removed = prune("--keep-versions", "2", "--keep-training", "1")
    assert removed["versions"] == [1, 2, 4, 5, 6, 7]
    assert log.checkpoints("m")[3]["removed_at_us"] is None
    assert (tmp_path / "3").is_dir()


def test_the_version_of_a_worker_whose_clock_is_behind_stays(log: Log) -> None:
    log.workers["w"] = new_worker_status(
        event_id="s", occurred_at_us=0, worker_id="w", engine="torch", url="", model="m", state="serving", version=3
    )
    log.workers_written_us["w"] = now_us()
    assert prune("--keep-versions", "2")["versions"] == [1, 2, 4, 5, 6, 7]


def test_versions_are_put_back_if_the_log_cannot_be_read_again(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_read(*_: object) -> None:
        if any(one["removed_at_us"] is not None for one in log.events):
            raise RegistryUnavailable("the log was not read")

    monkeypatch.setattr(model_prune, "wait_read", wait_read)
    result = CliRunner().invoke(model_prune.prune, ["m", "--keep-versions", "2"])
    assert isinstance(result.exception, RegistryUnavailable)
    assert all(one["removed_at_us"] is None for one in log.checkpoints("m").values())
    assert len(list(tmp_path.iterdir())) == 10
