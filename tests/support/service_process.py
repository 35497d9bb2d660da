"""Run a Stepstream process that a test may kill, pause and restart."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings, environment_of
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import HttpReady, KafkaReady


class ServiceProcess:
    """`python -m MODULE` with exactly these settings; as a context manager, started until ready and stopped."""

    def __init__(
        self, module: str, settings: Settings, ready: Callable[[], bool], log: Path, *, under: Sequence[str] = ()
    ) -> None:
        """Prepare the process without starting it; `under` are Python's arguments before `-m MODULE` (a launcher)."""
        self.settings = settings
        self._under = under
        self._module = module
        self._ready = ready
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the process without waiting."""
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, *self._under, "-m", self._module],
                env={**os.environ, **environment_of(self.settings)},
                stdout=sink,
                stderr=sink,
            )

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self.launch()

        def ready() -> bool:
            assert self.status is None, f"{self._module} ended:\n{self.log_text}"
            return self._ready()

        wait_until(ready, lambda: f"{self._module} did not start:\n{self.log_text}")

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def log_text(self) -> str:
        """Log of all starts."""
        return self._log.read_text()

    def limit_file_size(self, limit: int) -> None:
        """Let each write beyond `limit` bytes of a file fail, as on a full disk; -1: no limit."""
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        process.rlimit(psutil.RLIMIT_FSIZE, (limit, process.rlimit(psutil.RLIMIT_FSIZE)[1]))

    def children(self) -> list[psutil.Process]:
        """Return its child processes and their descendants."""
        assert self._process is not None
        return psutil.Process(self._process.pid).children(recursive=True)

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Send SIGSTOP: it keeps its connections but does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT: it continues."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def request_stop(self) -> None:
        """Send SIGTERM."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.request_stop()
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the process; return the exit status."""
        assert self._process is not None
        try:
            return self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self._module} did not stop:\n{self.log_text}") from None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is None:
            self.stop()


def registry(settings: Settings, log: Path) -> ServiceProcess:
    """Return a schema registry on a free port that uses the broker of the settings."""
    port = free_block(1)
    url = f"http://127.0.0.1:{port}"
    settings = settings.model_copy(
        update={
            "registry": settings.registry.model_copy(update={"host": "127.0.0.1", "port": port}),
            "schema_registry": settings.schema_registry.model_copy(update={"url": url}),
        }
    )
    return ServiceProcess("stepstream.services.registry", settings, HttpReady(f"{url}/subjects"), log)


def broker(settings: Settings, log: Path) -> ServiceProcess:
    """Return a broker with exactly these settings (see `stepstream.embedded.addresses.isolated`)."""
    return ServiceProcess("stepstream.embedded.broker", settings, KafkaReady(settings.kafka), log)
