"""Load the versions that `checkpoints` and `rollouts` decide, and publish the worker's state to `worker-status`."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import closing
from typing import Any, TypeVar

from stepstream.config import Settings
from stepstream.services.inference import metrics
from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.services.inference.serving_plan import Refusals, versions_to_try
from stepstream.services.inference.version_source import VersionSource
from stepstream.services.inference.worker import Worker
from stepstream.topics.catalogue import CHECKPOINTS, WORKER_STATUS
from stepstream.topics.codec import Codec
from stepstream.topics.events import Checkpoint, Track, WorkerState, new_worker_status
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer
from stepstream.versions.follower import VersionFollower
from stepstream.versions.rollouts import ServedVersions

_log = logging.getLogger(__name__)
_POLL_S = 0.2

T = TypeVar("T")


class CheckpointWatcher:
    """Reads Kafka on separate threads, so that an unreachable broker never delays a request."""

    def __init__(self, settings: Settings, url: str, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._settings, self._url = settings, url
        self._worker, self._loop = worker, loop
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._state: WorkerState = "starting"
        self._newest: int | None = None
        self._problems: dict[Track, str] = {}
        self._refusals = Refusals()
        self._published_at = 0.0
        self.ended: Future[None] = Future()
        """Done when the thread ends; has its exception if it failed."""
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Publish the last status and end the thread; blocks for up to 5 s."""
        self._stopping.set()
        self._changed.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            codec = Codec(self._settings)
            self._producer = EventProducer(
                self._settings.kafka, codec, f"inference/{self._settings.inference.worker_id}"
            )
            with VersionFollower(self._settings) as versions:
                versions.on_change(lambda _model: self._changed.set())
                self._follow(versions)
            self._publish_status("stopping")
            self._producer.flush(3.0)
            codec.close()
            self.ended.set_result(None)
        except Exception as error:
            self.ended.set_exception(error)

    def _follow(self, versions: VersionFollower) -> None:
        source = VersionSource(self._settings, versions.checkpoint, serves_adapters=self._worker.serves_adapters)
        with closing(source):
            self._load_decided(versions, source)

    def _load_decided(self, versions: VersionFollower, source: VersionSource) -> None:
        self._publish_status("starting")
        has_logged_waiting = False
        while not self._stopping.is_set():
            self._changed.clear()
            if versions.is_current:
                self._reconcile(versions, source)
                if not has_logged_waiting and self._newest is None:
                    _log.info("waiting for a checkpoint of '%s' on the topic '%s'", self._worker.model, CHECKPOINTS)
                    has_logged_waiting = True
            self._producer.poll(0)
            if self._status_due_s() <= 0:
                self._publish_status(self._state)
            self._changed.wait(_POLL_S)

    def _reconcile(self, versions: VersionFollower, source: VersionSource) -> None:
        """Make the worker serve what the log says, as far as the versions pass their checks.

        The first track comes before the canary's end, so that a promoted canary keeps its trajectories.
        """
        served = versions.served(self._worker.model)
        if served.newest is not None and served.newest != self._newest:
            self._newest = served.newest
            metrics.NEWEST_VERSION.set(served.newest)
        before = self._facts()
        self._load_track(self._worker.track, served, versions, source)
        if self._worker.holds_both_tracks:
            if served.canary is not None:
                self._load_track("canary", served, versions, source)
            elif self._worker.version_on("canary") is not None and self._worker.version == served.stable:
                self._problems.pop("canary", None)
                self._await(self._worker.end_canary())
            else:
                self._problems.pop("canary", None)
        if self._worker.version is not None or self._problems:
            self._state = "refused" if self._problems else "serving"
        if self._facts() != before:
            self._publish_status(self._state)

    def _load_track(
        self, track: Track, served: ServedVersions, versions: VersionFollower, source: VersionSource
    ) -> None:
        """Load the best version of a track that passes its checks; note why better ones did not."""
        model, held = self._worker.model, self._worker.version_on(track)
        checkpoints = versions.checkpoints(model)
        published = {
            version: one["parent_version"] for version, one in checkpoints.items() if one["removed_at_us"] is None
        }
        rollout = versions.rollout(model)
        decided_by = "" if rollout is None else rollout["event_id"]
        problem: str | None = None
        for version in versions_to_try(served, track, held, published):
            checkpoint = checkpoints.get(version)
            if checkpoint is None or checkpoint["removed_at_us"] is not None:
                fate = "is not published" if checkpoint is None else "was removed"
                problem = problem or f"{model}@{version} {fate}"
                continue
            events = (checkpoint["event_id"], decided_by)
            if self._refusals.may_try(track, version, events, time.monotonic()):
                try:
                    self._publish_status("loading" if self._worker.version is None else self._state)
                    self._load(checkpoint, track, source)
                    break
                except CheckpointRefusedError as error:
                    metrics.REFUSED.inc()
                    _log.error("refused %s@%d for the track %s: %s", model, version, track, error)
                    self._refusals.add(track, version, events, str(error), time.monotonic())
            problem = problem or self._refusals.reason(track, version, events)
        if problem is None:
            self._problems.pop(track, None)
            return
        held = self._worker.version_on(track)
        self._problems[track] = problem if held is None else f"{problem}; {model}@{held} is served"

    def _load(self, checkpoint: Checkpoint, track: Track, source: VersionSource) -> None:
        files = self._reporting(_in_thread(lambda: source.fetch(checkpoint)))
        if files.adapter is None:
            self._await(self._worker.load(checkpoint, files.weights, track))
        else:
            self._await(self._worker.load_adapter(checkpoint, files.weights, files.adapter, track))
        source.hold(track, files)

    def _await(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._reporting(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def _reporting(self, call: "Future[T]") -> T:
        """Return the result of a call that may take minutes; repeat the status meanwhile.

        The worker goes on serving, and one that is silent counts as gone.
        """
        while not wait([call], max(0.0, self._status_due_s())).done:
            self._producer.poll(0)
            self._publish_status(self._state)
        return call.result()

    def _status_due_s(self) -> float:
        """Return the seconds until the next status; 0 or less: it is due."""
        return self._published_at + self._settings.inference.status_every_s - time.monotonic()

    def _facts(self) -> tuple[Any, ...]:
        """Return what makes a status worth publishing at once."""
        return self._state, self._newest, dict(self._problems), self._worker.tracks

    def _publish_status(self, state: WorkerState) -> None:
        self._state = "stopping" if self._stopping.is_set() else state
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
            newest_version=self._newest,
            state=self._state,
            reason="; ".join(self._problems.values()) or None,
            requests_in_flight=self._worker.in_flight,
            tracks=self._worker.served_versions(),
            capacity=inference.max_batch,
        )
        self._producer.send(WORKER_STATUS, inference.worker_id, record)


def _in_thread(call: Callable[[], T]) -> "Future[T]":
    """Call a function in a thread of its own, which does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised where the result is taken
            future.set_exception(error)

    threading.Thread(target=run, name="fetch", daemon=True).start()
    return future
