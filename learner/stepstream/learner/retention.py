"""Remove the files of old versions after each publication, from a thread, so that training does not wait.

Each removal is an event first; the files go once it is durable. A crash between the two leaves files that no event
names any more: the first pass of the next learner removes them.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack

from stepstream.config import Settings
from stepstream.core.object_store import local_path, remove
from stepstream.core.process import Stop
from stepstream.learner import SOURCE, metrics
from stepstream.learner.lineage import read_versions
from stepstream.topics.catalogue import CHECKPOINTS, WORKER_STATUS
from stepstream.topics.codec import Codec
from stepstream.topics.events import Checkpoint, UpdateInput, WorkerStatus
from stepstream.topics.exclusive_producer import ExclusiveProducer, Fenced
from stepstream.topics.ids import now_us
from stepstream.topics.table import Table
from stepstream.versions.follower import VersionFollower
from stepstream.versions.layout import TRAINING, WEIGHTS, name_of
from stepstream.versions.retention import REASON, Removals, announce_removals, is_named, removals_now, restored
from stepstream.versions.worker_agreement import loaded_versions, longest_silence_s

log = logging.getLogger(__name__)

_READ_S = 30.0
_CLOSE_S = 5.0


class Retention:
    """Applies `learner.keep_versions` and `learner.keep_training`. Faults are logged; the next version tries again."""

    def __init__(self, settings: Settings, codec: Codec, stop: Stop) -> None:
        """Connect lazily. A transactional id of its own keeps its events apart from a version in publication."""
        self._settings, self._codec, self._stop = settings, codec, stop
        self._model = settings.learner.model
        self._is_on = settings.learner.keep_versions > 0 or settings.learner.keep_training > 0
        self._producer = ExclusiveProducer(
            settings.kafka, codec, SOURCE, f"retention/{self._model}", lambda: bool(stop) or self._closing.is_set()
        )
        self._inputs: dict[int, list[UpdateInput]] = {}
        self._heard: dict[str, float] = {}
        """Arrival of each worker's newest status, in seconds of the monotonic clock: workers' clocks may be behind."""
        self._unremoved: list[tuple[Checkpoint, str]] | None = None
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def take_over(self) -> None:
        """Keep older learners of the model from removing anything more; block until then.

        Raises:
            DeliveryFailed: stopped first.
        """
        self._producer.take_over()

    def prune_after(self, checkpoint: Checkpoint) -> None:
        """Remove in the background what a version makes superfluous; return at once."""
        if not self._is_on:
            return
        self._inputs[checkpoint["version"]] = checkpoint["inputs"]
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
            self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """End the thread after the file that it removes now, within 5 seconds."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        with ExitStack() as stack:
            versions = stack.enter_context(VersionFollower(self._settings))
            workers = stack.enter_context(Table(self._settings, WORKER_STATUS, on_change=self._note_worker))
            while self._wake.wait() and not self._closing.is_set():
                self._wake.clear()
                try:
                    self._prune(versions, workers)
                except Fenced as error:
                    log.warning("old versions are left to the newer learner: %s", error)
                    return
                except Exception as error:  # training goes on; the next version tries again
                    metrics.RETENTION_FAULTS.inc()
                    log.warning("old versions were not removed, the next version tries again: %r", error)

    def _prune(self, versions: VersionFollower, workers: Table) -> None:
        self._wait_read(versions, workers)
        checkpoints = versions.checkpoints(self._model)
        if self._unremoved is None:
            self._unremoved = self._left_files(checkpoints, versions.served(self._model).in_use)
        every_s = self._settings.inference.status_every_s
        since_s = time.monotonic() - longest_silence_s(every_s)
        heard = {worker for worker, arrived_s in dict(self._heard).items() if arrived_s >= since_s}
        loaded = loaded_versions(workers.items().values(), self._model, now_us(), every_s, heard)

        def removals_by_log() -> Removals:
            self._wait_read(versions)
            return self._removals(versions, checkpoints, loaded)

        removals = self._removals(versions, checkpoints, loaded)
        whole = self._with_inputs(checkpoints, {*removals.versions, *removals.training})
        events = announce_removals(whole, removals, now_us(), self._publish, removals_by_log)
        self._forget_inputs(removals)
        self._unremoved += events
        # The follower has not read the removals yet.
        removed = {checkpoint["version"]: checkpoint for checkpoint, _ in events}
        self._remove_files((checkpoints | removed).values())

    def _note_worker(self, worker_id: str, _status: WorkerStatus | None) -> None:
        self._heard[worker_id] = time.monotonic()

    def _wait_read(self, *tables: VersionFollower | Table) -> None:
        for table in tables:
            if not table.wait_current(_READ_S):
                raise TimeoutError(f"the log was not read within {_READ_S:g} s")

    def _left_files(self, checkpoints: dict[int, Checkpoint], in_use: Collection[int]) -> list[tuple[Checkpoint, str]]:
        """Return the parts of versions that a crash left; publish again the versions of them that are in use.

        The crash came before the check whether a decision names them, or after it: then files may be missing.
        """
        found = left_files(checkpoints.values())
        kept = {one["version"] for one, part in found if one["version"] in in_use and (part or _is_restorable(one))}
        again = {one["version"] for one, part in found if not part} & kept
        for version, checkpoint in self._with_inputs(checkpoints, again).items():
            checkpoints[version] = restored(checkpoint)
        self._publish(checkpoints[version] for version in sorted(again))
        return [(one, part) for one, part in found if one["version"] not in kept]

    def _removals(
        self, versions: VersionFollower, checkpoints: Mapping[int, Checkpoint], loaded: Collection[int]
    ) -> Removals:
        return removals_now(
            checkpoints,
            versions.served(self._model),
            loaded,
            keep_versions=self._settings.learner.keep_versions,
            keep_training=self._settings.learner.keep_training,
        )

    def _publish(self, checkpoints: Iterable[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            self._producer.send(CHECKPOINTS, name_of(checkpoint), checkpoint)
        self._producer.flush()

    def _with_inputs(self, checkpoints: Mapping[int, Checkpoint], needed: Collection[int]) -> dict[int, Checkpoint]:
        """Return the newest events of versions, with the inputs that the follower leaves out."""
        if set(needed) - set(self._inputs):
            published = read_versions(self._settings.kafka, self._codec).by_model[self._model]
            self._inputs |= {version: published[version]["inputs"] for version in needed}
        return {version: {**checkpoints[version], "inputs": self._inputs[version]} for version in needed}

    def _forget_inputs(self, removals: Removals) -> None:
        """Bound the memory to the inputs of versions that may still lose files."""
        is_last = removals.versions if self._settings.learner.keep_versions else removals.training
        for version in is_last:
            self._inputs.pop(version, None)

    def _remove_files(self, checkpoints: Collection[Checkpoint]) -> None:
        """Remove what the log no longer names; a part that cannot be removed is tried again after the next version."""
        waiting, self._unremoved = self._unremoved or [], []
        for checkpoint, part in waiting:
            if is_named(checkpoint, part, checkpoints):
                continue  # another version has the same files
            if self._closing.is_set():
                return
            what = f"{'the training state' if part else 'the files'} of {name_of(checkpoint)}"
            try:
                remove(checkpoint["uri"], part)
            except OSError as error:
                metrics.RETENTION_FAULTS.inc()
                log.warning("%s cannot be removed, the next version tries again: %s", what, error)
                self._unremoved.append((checkpoint, part))
            else:
                metrics.REMOVED.labels(part or "all").inc()
                log.info("removed %s: nothing needs it any more", what)


def left_files(checkpoints: Iterable[Checkpoint]) -> list[tuple[Checkpoint, str]]:
    """Return the parts of versions that lie on this machine although their events say that they are removed."""
    found: list[tuple[Checkpoint, str]] = []
    for checkpoint in checkpoints:
        folder = local_path(checkpoint["uri"])
        if folder is None or not folder.is_dir():
            continue
        has_training = any(file["path"].startswith(f"{TRAINING}/") for file in checkpoint["files"])
        if not _is_present(checkpoint):
            found.append((checkpoint, ""))
        elif not has_training and (folder / WEIGHTS).is_dir() and (folder / TRAINING).is_dir():
            found.append((checkpoint, TRAINING))
    return found


def _is_present(checkpoint: Checkpoint) -> bool:
    return checkpoint["removed_at_us"] is None


def _is_restorable(checkpoint: Checkpoint) -> bool:
    """Return True if retention removed a version whose files all lie on this machine yet."""
    folder = local_path(checkpoint["uri"])
    paths = [] if folder is None else [(folder / file["path"], file["size_bytes"]) for file in checkpoint["files"]]
    is_whole = all(path.is_file() and path.stat().st_size == size for path, size in paths)
    return bool(paths) and is_whole and checkpoint["removal_reason"] == REASON
