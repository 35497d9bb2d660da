"""Run the senders of `ingest.py` as processes: batches of spans over OTLP, and steps with the SDK."""

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
    """Starts processes that send batches; batch numbers continue over runs, so ids are unique."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first = 1

    def start(self, server: Server, seconds: float) -> "subprocess.Popen[str]":
        """Start a process that sends for `seconds`."""
        file = self._folder / f"load-{self._first}.json"
        file.write_text(json.dumps(asdict(Load(server.ports, seconds, self._first, server.resource))))
        self._first += 1_000_000
        return subprocess.Popen([sys.executable, otlp_load.__file__, str(file)], stdout=subprocess.PIPE, text=True)

    def rate(self, server: Server, seconds: float) -> Round:
        """Return the spans per second without the start."""
        sending = self.start(server, seconds)
        time.sleep(2 * WARM_S)
        since, cpu = time.monotonic(), server.cpu_s()
        time.sleep(seconds - 2 * WARM_S)
        end, cpu = time.monotonic(), server.cpu_s() - cpu
        outcome = outcome_of(sending)
        if outcome["failed"]:
            raise SystemExit(f"{outcome['failed']} batches were not acknowledged: see the servers' logs")
        spans = SPANS * sum(since <= at < end for _, at in outcome["acknowledged"])
        return Round(spans / (end - since), spans / cpu)


def outcome_of(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for the client to end; return its report."""
    out, _ = process.communicate(timeout=120)
    outcome: dict[str, Any] = json.loads(out)
    return outcome


class Recorder:
    """Starts processes that record with the SDK; each has a new name, so trajectory ids are unique."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._environment = ENVIRONMENT | environment_of(settings)
        self._started = 0

    def start(self, seconds: float) -> "Recording":
        """Start a process that records for `seconds`."""
        self._started += 1
        name = f"recorded-{self._started}"
        flushes = self._folder / f"{name}.jsonl"
        with flushes.open("w") as out:
            arguments = [sys.executable, sdk_load.__file__, name, str(seconds)]
            return Recording(name, flushes, subprocess.Popen(arguments, stdout=out, env=self._environment))

    def rate(self, seconds: float) -> float:
        """Return the steps per second after the first flush."""
        recording = self.start(seconds)
        if recording.process.wait():
            raise SystemExit("the SDK's process failed: see its error above")
        flushes = recording.flushes()
        (first, since), (last, end) = flushes[0], flushes[-1]
        return (last - first) * CALLS_OF_RUN / (end - since)


@dataclass
class Recording:
    """One process that records with the SDK, and the file of its flushes."""

    name: str
    file: Path
    process: "subprocess.Popen[bytes]"

    def flushes(self) -> list[tuple[int, float]]:
        """Return (runs durable since the start, time in seconds) of each flush."""
        return [(runs, at) for runs, at in map(json.loads, self.file.read_text().splitlines())]
