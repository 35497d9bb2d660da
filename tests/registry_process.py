"""A schema registry as a real process, that a test may kill and start again."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from stepstream.config import Settings, environment_of
from stepstream.embedded.ports import free_block


class RegistryProcess:
    """Ours, on a free port, over the broker of the settings."""

    def __init__(self, settings: Settings, log: Path) -> None:
        port = free_block(1)
        self.url = f"http://127.0.0.1:{port}"
        self.settings = settings.model_copy(
            update={
                "registry": settings.registry.model_copy(update={"host": "127.0.0.1", "port": port}),
                "schema_registry": settings.schema_registry.model_copy(update={"url": self.url}),
            }
        )
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Starts it without waiting."""
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stepstream.services.registry"],
                env={**os.environ, **environment_of(self.settings)},
                stdout=sink,
                stderr=sink,
            )

    def start(self, deadline_s: float = 60.0) -> None:
        """Starts it and waits until it answers."""
        self.launch()
        deadline = time.monotonic() + deadline_s
        while not answers(self.url + "/subjects"):
            if self.exited or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"the registry did not start:\n{self.log.read_text()}")
            time.sleep(0.02)

    @property
    def exited(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the registry did not stop:\n{self.log.read_text()}") from None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.exited:
            self.stop()


def answers(url: str) -> bool:
    """Whether a GET answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False
