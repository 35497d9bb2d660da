"""Provide the store as a real process on a free port, shared or to kill."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from stack_fixtures import REFRESH_S
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings, environment_of, load
from stepstream.embedded.ports import free_block
from stepstream.jobs.clickhouse.connection import connect


@dataclass
class StoreProcess:
    """A store process that a test may kill and restart on the same data."""

    settings: Settings
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.settings.clickhouse.url

    def start(self) -> None:
        env = {**os.environ, **environment_of(self.settings)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stepstream.services.store"], env=env, stderr=log, stdout=log
            )
        try:
            wait_until(self._starts, lambda: f"the store did not start:\n{self.log.read_text()}")
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the store did not stop:\n{self.log.read_text()}")

    def _starts(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the store ended:\n{self.log.read_text()}"
        return self._answers()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ping", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def store_process(folder: Path, store: dict[str, str] | None = None, **clickhouse: str) -> StoreProcess:
    """Return a store that is not started, on a free port, with its data in `folder`.

    `store` and `clickhouse` are settings of these sections.
    """
    port = free_block(1)
    environment = {
        "STEPSTREAM_PATHS_DATA": str(folder),
        "STEPSTREAM_STORE_PORT": str(port),
        "STEPSTREAM_CLICKHOUSE_URL": f"http://127.0.0.1:{port}",
        "STEPSTREAM_CLICKHOUSE_REFRESH_S": str(REFRESH_S),
        **{f"STEPSTREAM_CLICKHOUSE_{name}".upper(): value for name, value in clickhouse.items()},
        **{f"STEPSTREAM_STORE_{name}".upper(): value for name, value in (store or {}).items()},
    }
    return StoreProcess(load(environment), folder / "store.log")


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[StoreProcess]:
    """A running store for one test, which may kill and restart it."""
    store = store_process(tmp_path)
    store.start()
    yield store
    if store.process is not None and store.process.poll() is None:
        store.stop()


@pytest.fixture(scope="session")
def store_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of a running store that the session shares: use your own database."""
    store = store_process(tmp_path_factory.mktemp("store"))
    store.start()
    yield store.settings
    store.stop()


@pytest.fixture(scope="module")
def own_database(store_settings: Settings) -> Iterator[Callable[[str], Settings]]:
    """Return a function that gives the shared store's settings with a database of this name, dropped at the end.

    The views of each migrated database are refreshed as long as it exists.
    """
    names: list[str] = []

    def settings_of(name: str) -> Settings:
        names.append(name)
        return store_settings.model_copy(
            update={"clickhouse": store_settings.clickhouse.model_copy(update={"database": name})}
        )

    yield settings_of
    with connect(store_settings) as client:
        for name in names:
            client.command(f"DROP DATABASE IF EXISTS {name} SYNC")
