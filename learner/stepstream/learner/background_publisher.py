"""Publish versions from a thread, one at a time and in order, while training goes on."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop
from stepstream.learner import metrics as learner_metrics
from stepstream.learner.model.snapshot import Snapshot
from stepstream.learner.publish import prune_version_cache, publish_version
from stepstream.topics.events import Checkpoint, UpdateInput
from stepstream.topics.ids import new_event_id
from stepstream.topics.producer import EventProducer
from stepstream.versions.shared_memory import SharedVersions

log = logging.getLogger(__name__)

_RETRY_S, _MAX_RETRY_S = 1.0, 60.0
"""Shortest and longest time between two attempts to write a version."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Published:
    """A version that is durable."""

    checkpoint: Checkpoint
    folder: Path
    """Local folder with the complete version (its adapters, in the form `lora`)."""
    seconds: float
    """Time from the snapshot to the acknowledgement."""


class BackgroundPublisher:
    """Publishes the versions of one lineage. Only `take` blocks, if a time is given."""

    def __init__(
        self,
        settings: Settings,
        producer: EventProducer,
        parent: Checkpoint,
        folder: Path,
        newest: int,
        adapter_base: int | None,
        stop: Stop,
        shared: SharedVersions | None = None,
        keep: Sequence[Path] = (),
    ) -> None:
        """Continue a lineage.

        Args:
            settings: settings.
            producer: owner of the model's versions; used only by this object from now on.
            parent: version that the next one is trained from.
            folder: its local folder.
            newest: number of the newest version, which is not `parent` if that one was taken back.
            adapter_base: see `publish_version`.
            stop: ends waits.
            shared: see `publish_version`.
            keep: folders that the lineage uses, which stay in the cache of versions beside `folder`.
        """
        self._keep = [folder, *keep]
        self._shared = shared
        self._settings, self._producer, self._stop = settings, producer, stop
        self._parent, self._folder, self._adapter_base = parent, folder, adapter_base
        self._next = newest + 1
        self._thread: threading.Thread | None = None
        self._result: Published | Exception | None = None
        self.event_id = ""
        """Id of the newest version's event that this object published or publishes; empty: none yet."""

    @property
    def is_busy(self) -> bool:
        """True until the version in publication was taken."""
        return self._thread is not None

    def start(
        self,
        snapshot: Snapshot,
        *,
        before: Callable[[], None],
        inputs: Sequence[UpdateInput],
        resume_offsets: Mapping[int, int],
        metrics: Mapping[str, float],
    ) -> None:
        """Publish a snapshot as the version after the newest, which must have been taken.

        Args:
            snapshot: state of the trainer.
            before: blocks until decisions about records before `resume_offsets` are durable.
            inputs: see `publish_version`.
            resume_offsets: see `publish_version`.
            metrics: see `publish_version`.
        """
        assert self._thread is None
        self.event_id, threads, started_s = new_event_id(), torch.get_num_threads(), time.monotonic()

        def run() -> None:
            torch.set_num_threads(threads)
            try:
                before()
                checkpoint, folder = publish_version(
                    self._settings,
                    self._producer,
                    snapshot,
                    self._parent,
                    self._folder,
                    event_id=self.event_id,
                    inputs=inputs,
                    resume_offsets=resume_offsets,
                    metrics=metrics,
                    stop=self._stop,
                    adapter_base=self._adapter_base,
                    shared=self._shared,
                    attempt=self._retry,
                    number=self._next,
                )
                prune_version_cache(self._settings, [*self._keep, self._folder, folder])
                self._result = Published(checkpoint, folder, time.monotonic() - started_s)
            except Exception as fault:  # raised in the thread that calls `take`
                self._result = fault

        self._thread = threading.Thread(target=run, name="publisher", daemon=True)
        self._thread.start()

    def _retry(self, step: Callable[[], T]) -> T:
        """Call `step` until the disk and the store accept what it writes.

        Raises:
            Fatal: they do not, and a stop was requested.
        """
        name, wait_s = f"{self._parent['model']}@{self._next}", _RETRY_S
        while True:
            try:
                result = step()
            except OSError as fault:
                learner_metrics.PUBLICATION_FAULTS.inc()
                learner_metrics.PUBLICATION_FAILING.set(1)
                if self._stop:
                    raise Fatal(f"{name} cannot be written and is not published: {fault}") from fault
                log.warning("%s cannot be written, next attempt in %g s: %s", name, wait_s, fault)
                self._stop.wait(wait_s)
                wait_s = min(2 * wait_s, _MAX_RETRY_S)
            else:
                learner_metrics.PUBLICATION_FAILING.set(0)
                return result

    def take(self, wait_s: float = 0.0) -> Published | None:
        """Return the version in publication once it is durable; None: it is not yet, or there is none.

        Raises:
            Fenced: another learner of the model took over.
            Fatal: a stop was requested before the files could be written, or before the event was durable.
            DeliveryFailed: Kafka rejected the event.
        """
        if self._thread is None:
            return None
        self._thread.join(wait_s)
        if self._thread.is_alive():
            return None
        self._thread = None
        result, self._result = self._result, None
        if isinstance(result, Exception):
            raise result
        assert result is not None
        self._parent, self._folder = result.checkpoint, result.folder
        self._next = result.checkpoint["version"] + 1
        return result
