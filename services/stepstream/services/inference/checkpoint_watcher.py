"""Load each new checkpoint from the `checkpoints` topic, and publish the worker's state to `worker-status`."""

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

from stepstream.config import Settings
from stepstream.services.inference import metrics
from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.services.inference.worker import Worker, verified_folder
from stepstream.topics.catalogue import CHECKPOINTS, WORKER_STATUS
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event, EventConsumer
from stepstream.topics.events import Checkpoint, WorkerState, new_worker_status
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

_log = logging.getLogger(__name__)
_POLL_S = 0.2


@dataclass
class _State:
    state: WorkerState = "starting"
    reason: str | None = None
    newest: int | None = None


class CheckpointWatcher:
    """Reads Kafka on a separate thread, so that an unreachable broker never delays a request."""

    def __init__(self, settings: Settings, url: str, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._settings, self._url = settings, url
        self._worker, self._loop = worker, loop
        self._cache_folder = settings.paths.data.absolute() / "version-cache" / settings.inference.worker_id
        self._stopping = threading.Event()
        self._status = _State()
        self._published_at = 0.0
        self._candidates: dict[int, Checkpoint] = {}
        self.ended: Future[None] = Future()
        """Done when the thread ends; has its exception if it failed."""
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Publish the last status and end the thread; blocks for up to 5 s."""
        self._stopping.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            codec = Codec(self._settings.schema_registry)
            self._producer = EventProducer(
                self._settings.kafka, codec, f"inference/{self._settings.inference.worker_id}"
            )
            with EventConsumer(self._settings.kafka, codec) as consumer:
                self._follow(consumer)
            self._publish_status("stopping")
            self._producer.flush(3.0)
            codec.close()
            self.ended.set_result(None)
        except Exception as error:
            self.ended.set_exception(error)

    def _follow(self, consumer: EventConsumer) -> None:
        consumer.follow([CHECKPOINTS])
        self._publish_status("starting")
        has_logged_waiting = False
        while not self._stopping.is_set():
            for event in consumer.poll(100, _POLL_S):
                self._add_candidate(event)
            if self._candidates and consumer.is_caught_up():
                self._load_newest()
            elif not has_logged_waiting and self._worker.version is None and consumer.is_caught_up():
                _log.info("waiting for a checkpoint of '%s' on the topic '%s'", self._worker.model, CHECKPOINTS)
                has_logged_waiting = True
            self._producer.poll(0)
            if time.monotonic() - self._published_at >= self._settings.inference.status_every_s:
                self._publish_status(self._status.state)

    def _add_candidate(self, event: Event) -> None:
        if event.error is not None:
            _log.warning("skipped unreadable checkpoint event at offset %d: %s", event.offset, event.error)
            return
        checkpoint: Checkpoint = event.record
        if checkpoint is None or checkpoint["model"] != self._worker.model:
            return
        version = checkpoint["version"]
        if self._status.newest is None or version > self._status.newest:
            self._status.newest = version
            metrics.NEWEST_VERSION.set(version)
        if self._worker.version is None or version > self._worker.version:
            self._candidates[version] = checkpoint

    def _load_newest(self) -> None:
        """Load the newest candidate that passes its checks, and drop the older ones."""
        while self._candidates:
            version = max(self._candidates)
            checkpoint = self._candidates.pop(version)
            try:
                self._publish_status("loading" if self._worker.version is None else "serving")
                folder = verified_folder(checkpoint, self._cache_folder)
                load = self._worker.load(checkpoint, folder)
                asyncio.run_coroutine_threadsafe(load, self._loop).result()
            except CheckpointRefusedError as error:
                metrics.REFUSED.inc()
                _log.error("refused %s@%d: %s", self._worker.model, version, error)
                self._status.reason = str(error)
                self._publish_status("refused")
            else:
                self._candidates.clear()
                self._status.reason = None
                self._publish_status("serving")

    def _publish_status(self, state: WorkerState) -> None:
        self._status.state = state
        self._published_at = time.monotonic()
        if len(self._producer) > 100:  # the broker is unreachable: one newer status later is enough
            return
        inference = self._settings.inference
        record = new_worker_status(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            worker_id=inference.worker_id,
            engine=inference.engine,
            url=self._url,
            model=self._worker.model,
            version=self._worker.version,
            newest_version=self._status.newest,
            state=state,
            reason=self._status.reason,
            requests_in_flight=self._worker.in_flight,
        )
        self._producer.send(WORKER_STATUS, inference.worker_id, record)
