"""Announce scripted workers on `worker-status`, as inference workers do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from scripted_upstream import ScriptedUpstream
from waiting import TIMEOUT_S

from stepstream.config import Settings
from stepstream.topics.catalogue import WORKER_STATUS
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_worker_status
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

EVERY_S = 0.2


class AnnouncedWorker(ScriptedUpstream):
    """A scripted worker with a status."""

    def __init__(self, worker_id: str, **status: Any) -> None:
        """`status`: fields of its `WorkerStatus`."""
        super().__init__()
        self.worker_id = worker_id
        self.described: dict[str, Any] = {"version": self.version, "state": "serving"} | status
        self.silent = False


class Announcer:
    """Publishes the status of each worker every `EVERY_S` seconds, in a thread."""

    def __init__(self, settings: Settings, workers: list[AnnouncedWorker]) -> None:
        self._workers = workers
        self._codec = Codec(settings)
        self._producer = EventProducer(settings.kafka, self._codec, "test")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(TIMEOUT_S)
        for worker in self._workers:
            self.publish(worker, state="stopping")
        self._producer.flush(TIMEOUT_S)
        self._codec.close()

    def publish(self, worker: AnnouncedWorker, **fields: Any) -> None:
        """Publish one status of a worker, with other fields."""
        described = worker.described | fields
        status = new_worker_status(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            worker_id=worker.worker_id,
            engine="torch",
            url=worker.url,
            **described,
        )
        self._producer.send(WORKER_STATUS, worker.worker_id, status)

    def _run(self) -> None:
        while not self._closing.wait(EVERY_S):
            for worker in self._workers:
                if not worker.silent:
                    self.publish(worker)
            self._producer.poll(0)


@contextmanager
def announced(settings: Settings, *workers: AnnouncedWorker) -> Iterator[Announcer]:
    """Start the workers and announce them until the end."""
    for worker in workers:
        worker.start()
    try:
        with Announcer(settings, list(workers)) as announcer:
            yield announcer
    finally:
        for worker in workers:
            worker.die()
