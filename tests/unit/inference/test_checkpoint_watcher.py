"""Test the watcher's status with a log in memory: it is repeated while a version is fetched and loaded."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stack_fixtures import with_settings

from stepstream.config import Settings
from stepstream.services.inference import checkpoint_watcher
from stepstream.services.inference.checkpoint_watcher import CheckpointWatcher
from stepstream.services.inference.version_source import VersionFiles
from stepstream.topics.events import Checkpoint, WorkerStatus, new_checkpoint
from stepstream.versions.rollouts import ModelVersions

LIMIT_S = 20.0


class Statuses:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[WorkerStatus] = []
        self._arrived = threading.Condition()

    def __len__(self) -> int:
        return 0

    def send(self, _topic: str, _key: str, status: WorkerStatus) -> None:
        with self._arrived:
            self.sent.append(status)
            self._arrived.notify_all()

    def poll(self, _timeout_s: float) -> None: ...

    def flush(self, _timeout_s: float) -> None: ...

    def wait_for(self, condition: Callable[[list[WorkerStatus]], bool]) -> bool:
        """Block until a condition holds for the statuses; return False if it never does."""
        with self._arrived:
            return self._arrived.wait_for(lambda: condition(self.sent), LIMIT_S)

    def wait_for_more(self) -> bool:
        """Block until two more statuses came; return False if they do not."""
        known = len(self.sent)
        return self.wait_for(lambda sent: len(sent) >= known + 2)


class Log:
    """A model with the versions of the test, all read."""

    is_current = True

    def __init__(self) -> None:
        self._fold = ModelVersions()

    def publish(self, version: int) -> None:
        checkpoint = new_checkpoint(
            event_id=f"e{version}", occurred_at_us=0, model="m", version=version, uri="", weights_sha256="",
            code_version="",
        )  # fmt: skip
        self._fold.apply_checkpoint(version, checkpoint)

    def on_change(self, _callback: object) -> None: ...

    def served(self, _model: str) -> Any:
        return self._fold.served

    def checkpoints(self, _model: str) -> dict[int, Checkpoint]:
        return self._fold.checkpoints

    def checkpoint(self, _model: str, version: int) -> Checkpoint | None:
        return self._fold.checkpoints.get(version)

    def rollout(self, _model: str) -> None:
        return None


class SlowWorker:
    """A worker of one track whose files and swaps of a version take until statuses have come meanwhile."""

    model, track, holds_both_tracks, serves_adapters, in_flight = "m", "stable", False, False, 0

    def __init__(self, statuses: Statuses) -> None:
        self._statuses = statuses
        self.version: int | None = None
        self.heard: list[bool] = []
        """For the fetch and the load of each version: True if statuses came meanwhile."""

    @property
    def tracks(self) -> dict[str, int]:
        return {} if self.version is None else {"stable": self.version}

    def version_on(self, _track: str) -> int | None:
        return self.version

    def served_versions(self) -> list[Any]:
        return []

    def fetch(self, _checkpoint: Checkpoint) -> VersionFiles:
        self.heard.append(self._statuses.wait_for_more())
        return VersionFiles(Path())

    async def load(self, checkpoint: Checkpoint, _folder: Path, _track: str) -> None:
        self.heard.append(await asyncio.to_thread(self._statuses.wait_for_more))
        self.version = checkpoint["version"]

    def hold(self, *_: object) -> None: ...

    def close(self) -> None: ...


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch, statuses: Statuses, log: Log, worker: Any) -> Iterator[CheckpointWatcher]:
    """Start a watcher over a log in memory; the worker is also the source of its files."""
    for name, made in (
        ("Codec", SimpleNamespace(close=lambda: None)),
        ("EventProducer", statuses),
        ("VersionFollower", nullcontext(log)),
        ("VersionSource", worker),
    ):
        monkeypatch.setattr(checkpoint_watcher, name, lambda *_, made=made, **__: made)
    settings = with_settings(Settings(), inference={"status_every_s": 0.01})
    with running_loop() as loop:
        watcher = CheckpointWatcher(settings, "http://w", worker, loop)
        watcher.start()
        yield watcher
        watcher.stop()


def test_a_worker_is_heard_while_it_gets_and_loads_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses, log = Statuses(), Log()
    worker = SlowWorker(statuses)
    log.publish(1)
    with watching(monkeypatch, statuses, log, worker):
        assert statuses.wait_for(lambda sent: sent[-1]["version"] == 1)
        log.publish(2)
        assert statuses.wait_for(lambda sent: sent[-1]["version"] == 2)
    assert worker.heard == [True] * 4
    states = [(status["state"], status["version"]) for status in statuses.sent]
    assert list(dict.fromkeys(states)) == [
        ("starting", None), ("loading", None), ("serving", 1), ("serving", 2), ("stopping", 2),
    ]  # fmt: skip


def test_a_worker_that_is_stopped_while_it_loads_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses, log = Statuses(), Log()
    is_loading, may_end = threading.Event(), threading.Event()

    class Worker(SlowWorker):
        def fetch(self, _checkpoint: Checkpoint) -> VersionFiles:
            is_loading.set()
            assert may_end.wait(LIMIT_S)
            return VersionFiles(Path())

    log.publish(1)
    with watching(monkeypatch, statuses, log, Worker(statuses)) as watcher:
        assert is_loading.wait(LIMIT_S)
        stop = threading.Thread(target=watcher.stop)
        stop.start()
        said = statuses.wait_for(lambda sent: sent[-1]["state"] == "stopping")
        known = len(statuses.sent)
        may_end.set()
        stop.join()
    assert said
    assert {status["state"] for status in statuses.sent[known:]} == {"stopping"}
