"""Run a job that writes its records to a file: `python tests/support/job_worker_process.py NAME FILE TOPIC…`.

A line of FILE is `topic partition offset value`. A record `boom` raises while the file `FILE.armed` exists.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.jobs.runtime.fetch import Fetch, GroupMember
from stepstream.jobs.runtime.processor import transactional_id_of
from stepstream.jobs.runtime.runner import run_job
from stepstream.jobs.runtime.transaction import TransactionalPublisher, committed_offsets
from stepstream.topics.codec import Codec


class RecordLogger:
    """A stateless processor that appends a line for each call."""

    def __init__(self, file: Path, topic: str, publisher: TransactionalPublisher) -> None:
        self._file, self._topic, self._publisher = file, topic, publisher
        self._armed = file.with_name(file.name + ".armed")

    def open(self, partitions: Iterable[int], member: GroupMember) -> None:
        self._publisher.settle(self._topic, member)
        self._write(f"open {sorted(partitions)}")

    def close(self, partitions: Iterable[int]) -> None:
        self._write(f"close {sorted(partitions)}")

    def tick(self) -> None:
        pass

    def shut_down(self) -> None:
        pass

    def process(self, fetch: Fetch) -> None:
        for record in fetch.records:
            if record.value == b"boom" and self._armed.exists():
                raise RuntimeError("a bug")
        positions = {partition: end for partition, (_, end) in fetch.positions.items()}
        self._publisher.commit([], committed_offsets(positions, {}), fetch.member)
        for record in fetch.records:
            self._write(f"{record.topic} {record.partition} {record.offset} {(record.value or b'').decode()}")

    def _write(self, line: str) -> None:
        with self._file.open("a") as out:
            out.write(line + "\n")


def main(settings: Settings, stop: Stop) -> None:
    name, file, *topics = sys.argv[1:]

    def make(settings: Settings, cancelled: Callable[[], bool]) -> RecordLogger:
        codec = Codec(settings)
        id = transactional_id_of(settings, name)
        return RecordLogger(Path(file), topics[0], TransactionalPublisher(settings, codec, name, id, cancelled))

    run_job(settings, stop, name, topics, make)


if __name__ == "__main__":
    run("scribe", main)
