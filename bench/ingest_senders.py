"""What sends in `ingest.py`: batches of spans over OTLP, and steps by the SDK, each from a process of its own."""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import otlp_load
import sdk_load
from gateway import ENVIRONMENT
from ingest_servers import Server
from otlp_load import CALLS_OF_RUN, SPANS, Load

from stepstream.config import Settings, environment_of

WARM_S = 1.0


@dataclass
class Round:
    """Spans per second and per CPU-second of the server."""

    rate: float
    per_core: float


class Client:
    """Sends batches from a process of its own; numbers go on from run to run, so that no id comes twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first = 1

    def start(self, server: Server, seconds: float) -> "subprocess.Popen[str]":
        """Begins to send."""
        file = self._folder / f"load-{self._first}.json"
        file.write_text(json.dumps(asdict(Load(server.ports, seconds, self._first, server.resource))))
        self._first += 1_000_000
        return subprocess.Popen([sys.executable, otlp_load.__file__, str(file)], stdout=subprocess.PIPE, text=True)

    def rate(self, server: Server, seconds: float) -> Round:
        """Spans per second, the start left out."""
        sending = self.start(server, seconds)
        time.sleep(2 * WARM_S)
        since, cpu = time.monotonic(), server.cpu_s()
        time.sleep(seconds - 2 * WARM_S)
        until, cpu = time.monotonic(), server.cpu_s() - cpu
        told = said(sending)
        if told["failed"]:
            raise SystemExit(f"{told['failed']} of the batches were not acknowledged: see the servers' logs")
        spans = SPANS * sum(since <= at < until for _, at in told["acknowledged"])
        return Round(spans / (until - since), spans / cpu)


def said(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What the client reports at its end."""
    out, _ = process.communicate(timeout=120)
    found: dict[str, Any] = json.loads(out)
    return found


class Recorder:
    """Processes that record with the SDK; names go on from one to the next, so that no trajectory comes twice."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._environment = ENVIRONMENT | environment_of(settings)
        self._started = 0

    def start(self, seconds: float) -> "Recording":
        """Begins to record."""
        self._started += 1
        name = f"recorded-{self._started}"
        told = self._folder / f"{name}.jsonl"
        with told.open("w") as out:
            arguments = [sys.executable, sdk_load.__file__, name, str(seconds)]
            return Recording(name, told, subprocess.Popen(arguments, stdout=out, env=self._environment))

    def rate(self, seconds: float) -> float:
        """Steps per second, the first flush left out."""
        recording = self.start(seconds)
        if recording.process.wait():
            raise SystemExit("the SDK's process failed")
        flushes = recording.flushes()
        (first, since), (last, until) = flushes[0], flushes[-1]
        return (last - first) * CALLS_OF_RUN / (until - since)


@dataclass
class Recording:
    """One process that records with the SDK, and the file that it tells of its flushes in."""

    name: str
    told: Path
    process: "subprocess.Popen[bytes]"

    def flushes(self) -> list[tuple[int, float]]:
        """How many runs each flush made durable, from the start, and when."""
        return [(runs, at) for runs, at in map(json.loads, self.told.read_text().splitlines())]
