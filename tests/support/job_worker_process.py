"""Run a job that writes its records to a file: `python tests/support/job_worker_process.py NAME FILE TOPIC…`.

A line of FILE is `topic partition offset value`. A record `boom` raises while the file `FILE.armed` exists.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.runner import run_job


class RecordLogger:
    """A stateless processor that appends a line for each call."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._armed = file.with_name(file.name + ".armed")

    def open(self, partitions: Iterable[int]) -> None:
        self._write(f"open {sorted(partitions)}")

    def close(self, partitions: Iterable[int]) -> None:
        self._write(f"close {sorted(partitions)}")

    def tick(self) -> None:
        pass

    def shut_down(self) -> None:
        pass

    def process(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.value == b"boom" and self._armed.exists():
                raise RuntimeError("a bug")
        for record in records:
            self._write(f"{record.topic} {record.partition} {record.offset} {(record.value or b'').decode()}")

    def _write(self, line: str) -> None:
        with self._file.open("a") as out:
            out.write(line + "\n")


def main(settings: Settings, stop: Stop) -> None:
    name, file, *topics = sys.argv[1:]

    def make(_settings: Settings, _cancelled: Callable[[], bool]) -> RecordLogger:
        return RecordLogger(Path(file))

    run_job(settings, stop, name, topics, make)


if __name__ == "__main__":
    run("scribe", main)
