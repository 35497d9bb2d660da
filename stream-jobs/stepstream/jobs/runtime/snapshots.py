"""Take snapshots of the state of a job's partitions now and then, and restore them.

The processing thread makes a checkpoint of one partition (hard links, milliseconds). A thread uploads it. A fault of
the snapshot store stops nothing: it is logged and counted, and the partition's next turn tries again.
"""

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from stepstream.config import Settings
from stepstream.core.object_store import address_of
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.fold import FoldJob, Partition
from stepstream.jobs.runtime.log_reader import Committed
from stepstream.jobs.runtime.retry import BoundedRetry, Cancelled, RetriesExhausted
from stepstream.jobs.runtime.snapshot_manifest import Manifest, SnapshotRefused
from stepstream.jobs.runtime.snapshot_store import SnapshotStore
from stepstream.jobs.runtime.state import PartitionState

log = logging.getLogger(__name__)

_CHECKPOINT = ".checkpoint-"
_STOP_S = 2.0
_RESTORE_RETRY_S = 60.0
"""Time to retry a snapshot store that does not answer, before the state is folded from the log."""


def snapshot_address(settings: Settings) -> str:
    """Return the address of all jobs' snapshots."""
    return address_of(settings, settings.jobs.snapshots, "state-snapshots")


def start_thread(work: Callable[[], None]) -> threading.Thread:
    """Run `work` in a thread that does not keep the process alive."""
    thread = threading.Thread(target=work, name="snapshots", daemon=True)
    thread.start()
    return thread


class SnapshotWriter:
    """Takes snapshots of the partitions of one worker. Use from the processing thread."""

    def __init__(
        self,
        store: SnapshotStore,
        folder: Path,
        interval_s: float,
        start: Callable[[Callable[[], None]], threading.Thread | None] = start_thread,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a snapshot of each partition that has changed every `interval_s` seconds; 0: never.

        Args:
            store: where snapshots go.
            folder: of the partitions' state; checkpoints are made beside it, on the same file system.
            interval_s: seconds between two snapshots of a partition.
            start: runs an upload.
            now_s: the clock, in seconds.
        """
        self._store, self._folder, self._interval_s = store, folder, interval_s
        self._start, self._now_s = start, now_s
        self._uploading: threading.Thread | None = None
        self._taken: dict[int, _Taken] = {}
        for left in folder.glob(f"{_CHECKPOINT}*"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)

    def opened(self, partition: Partition) -> None:
        """Begin with a partition. Its first snapshot is due after the interval; at once if it was rebuilt."""
        self._taken[partition.number] = _Taken(self._now_s() - (self._interval_s if partition.rebuilt else 0))

    def take_due(self, partitions: Mapping[int, Partition]) -> None:
        """Take the snapshot that is due the longest, unless one is being uploaded. Blocks for milliseconds."""
        if self._interval_s <= 0:
            return
        self._taken = {number: taken for number, taken in self._taken.items() if number in partitions}
        now_s = self._now_s()
        marks = {number: _mark(partitions[number].state) for number in self._taken}
        changed = {n: one for n, one in self._taken.items() if marks[n] is not None and one.mark != marks[n]}
        metrics.SNAPSHOT_AGE.set(max((now_s - one.saved_s for one in changed.values()), default=0.0))
        if self._uploading is not None and self._uploading.is_alive():
            return
        due = [n for n, one in changed.items() if now_s - one.tried_s >= self._interval_s]
        if due:
            number = min(due, key=lambda n: self._taken[n].tried_s)
            self._take(partitions[number], self._taken[number])

    def close(self) -> None:
        """Wait a moment for an upload, which ends itself once the process must end."""
        if self._uploading is not None:
            self._uploading.join(_STOP_S)

    def _take(self, partition: Partition, taken: "_Taken") -> None:
        now_s = taken.tried_s = self._now_s()
        state, number = partition.state, partition.number
        mark = _mark(state)
        arguments = state.identity, number, dict(state.position), state.ticks, state.written_ms
        scratch = Path(tempfile.mkdtemp(prefix=_CHECKPOINT, dir=self._folder))
        checkpoint = scratch / "state"

        def upload() -> None:
            try:
                manifest = self._store.write(checkpoint, *arguments)
                taken.saved_s, taken.mark = now_s, mark
                metrics.SNAPSHOTS.labels("written").inc()
                log.info("wrote snapshot %s of partition %d", manifest.name, number)
                self._store.prune(arguments[0], number)
            except Cancelled:
                pass
            except Exception as error:  # of any client of a store
                _failed("write or prune", number, error)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

        try:
            state.checkpoint(checkpoint)
        except Exception as error:  # the binding raises bare exceptions
            shutil.rmtree(scratch, ignore_errors=True)
            _failed("write", number, error)
            return
        self._uploading = self._start(upload)


class SnapshotRestorer:
    """Restores the newest usable snapshot of a partition. Use from one thread."""

    def __init__(
        self, store: SnapshotStore, job: FoldJob, cancelled: Callable[[], bool], retry_s: float | None = None
    ) -> None:
        self._store, self._job = store, job
        self._retry = BoundedRetry(_RESTORE_RETRY_S if retry_s is None else retry_s, cancelled)

    def find(
        self, log_identity: str, number: int, committed: Mapping[str, Committed], ticks: int | None
    ) -> list[Manifest]:
        """Return the usable snapshots, newest first; none if the store does not answer."""
        try:
            found, refused = self._retry.call(
                "snapshots", lambda: self._store.usable(log_identity, number, committed, ticks), OSError
            )
        except RetriesExhausted as error:
            _failed("find", number, error)
            return []
        for reason in refused:
            _refused(self._job.name, number, reason)
        return found

    def restore(self, manifests: Iterable[Manifest], state: PartitionState) -> Manifest | None:
        """Replace a state by the first snapshot whose files are sound. Return it; None: the state is as before."""
        for manifest in manifests:
            scratch = state.folder.with_name(f"{_CHECKPOINT}{state.folder.name}")
            try:
                self._retry.call("snapshots", lambda m=manifest, s=scratch: self._download(m, s), OSError)  # type: ignore[misc]
                state.replace(scratch)
            except SnapshotRefused as refused:
                _refused(self._job.name, manifest.partition, f"{manifest.name}: {refused}")
                self._discard(manifest)
            except RetriesExhausted as error:
                _failed("restore", manifest.partition, error)
                return None
            else:
                metrics.SNAPSHOTS.labels("restored").inc()
                log.info("restored snapshot %s of %s partition %d", manifest.name, self._job.name, manifest.partition)
                return manifest
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return None

    def _download(self, manifest: Manifest, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._store.fetch(manifest, folder)
        try:
            state = PartitionState(folder)
        except Exception as error:  # the binding raises bare exceptions
            raise SnapshotRefused(f"RocksDB cannot open it: {error}") from error
        found = state.identity, dict(state.position), state.ticks
        state.close()
        if found != (manifest.log, dict(manifest.position), manifest.ticks):
            raise SnapshotRefused("its content is of other offsets than its manifest says: {}, {}, {}".format(*found))

    def _discard(self, manifest: Manifest) -> None:
        try:
            self._store.discard(manifest)
        except OSError as error:
            _failed("remove", manifest.partition, error)


class _Taken:
    """The newest snapshot of a partition: times by the writer's clock, and the state that it holds."""

    def __init__(self, at_s: float) -> None:
        self.tried_s = self.saved_s = at_s
        self.mark: _Mark | None = None


_Mark = tuple[object, ...]


def _mark(state: PartitionState) -> _Mark | None:
    """Return a value that changes with each write; None: no record was folded yet."""
    if not any(state.position.values()):
        return None
    return state.identity, state.written_ms, state.ticks, tuple(state.position.items())


def _failed(action: str, partition: int, error: Exception) -> None:
    metrics.SNAPSHOTS.labels("failed").inc()
    log.warning("could not %s a snapshot of partition %d, the job goes on: %s", action, partition, error)


def _refused(job: str, partition: int, reason: str) -> None:
    metrics.SNAPSHOTS.labels("refused").inc()
    log.warning("refused a snapshot of %s partition %d: %s", job, partition, reason)
