"""Hand versions to workers of the same user on this machine through a file system in memory.

    ROOT/stepstream-UID/learner-MODEL.XXXX/VERSION-ID/    a learner's copies of `weights/`, complete
    ROOT/stepstream-UID/worker.XXXX/VERSION-ID/weights/   a worker's hard links to the same memory

The files in the store remain the version, and its event the only announcement: a worker that has read the event looks
here, checks every digest and else fetches the files. Engines map the bytes that the learner wrote, without a copy.

Each process holds a lock in its folder (`flock`, which ends with the process, also by a kill). `close` removes the
folder; after a kill, the next process that starts does.
"""

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from stepstream.topics.events import Checkpoint
from stepstream.versions.check import check_complete, check_version
from stepstream.versions.layout import WEIGHTS, VersionRejected, folder_name

_log = logging.getLogger(__name__)
_LOCK = ".lock"

Shared = Literal["shared", "too_large", "no_room", "failed"]
"""Outcome of `SharedVersions.put`."""

NotSharedReason = Literal["start", "absent", "unsafe", "unsigned", "differs", "merged"]
"""Reason for which a worker reads files; docs/versions.md has a sentence for each."""


class NotShared(Exception):
    """A version cannot be taken from memory; its files can."""

    def __init__(self, reason: NotSharedReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class SharedVersions:
    """A learner's newest versions in memory, within a limit. Use it from one thread at a time."""

    def __init__(self, root: Path, model: str, limit_bytes: int) -> None:
        """Remove what killed processes left. A limit of 0 shares nothing."""
        self._root, self._model, self._limit_bytes = root, model, limit_bytes
        self._folder: ProcessFolder | None = None
        self._sizes: dict[Path, int] = {}
        remove_leftovers(root)

    def put(self, version: int, event_id: str, weights: Path) -> Shared | None:
        """Copy a version's complete `weights/` into memory, before its event is sent; the oldest copies go first.

        Blocks for the copy. Failures are logged, since the version's files are there anyway.

        Returns:
            The outcome; None: this learner shares nothing.
        """
        if not self._limit_bytes:
            return None
        size = sum(path.stat().st_size for path in weights.rglob("*") if path.is_file())
        if size > self._limit_bytes:
            _log.warning(
                "%s@%d has %d bytes, more than learner.shared_memory_bytes (%d): workers read its files",
                self._model, version, size, self._limit_bytes,
            )  # fmt: skip
            return "too_large"
        try:
            if self._folder is None:
                self._folder = ProcessFolder(self._root, f"learner-{quote(self._model, safe='')}")
            self._make_room(size)
            free = shutil.disk_usage(self._folder.path).free
            if size > free:
                _log.warning(
                    "%s@%d has %d bytes, %s has %d free: workers read its files; enlarge it (in Docker: --shm-size)",
                    self._model, version, size, self._root, free,
                )  # fmt: skip
                return "no_room"
            target = self._folder.path / folder_name(version, event_id)
            with _complete(target) as scratch:
                shutil.copytree(weights, scratch, copy_function=shutil.copyfile, dirs_exist_ok=True)
        except OSError as error:
            _log.warning("%s@%d cannot be put into %s: %s", self._model, version, self._root, error)
            return "failed"
        self._sizes[target] = size
        return "shared"

    def close(self) -> None:
        """Remove all copies; workers that took one keep it."""
        if self._folder is not None:
            self._folder.close()
        self._folder, self._sizes = None, {}

    def _make_room(self, size: int) -> None:
        while self._sizes and sum(self._sizes.values()) + size > self._limit_bytes:
            oldest = next(iter(self._sizes))
            shutil.rmtree(oldest)
            del self._sizes[oldest]


class SharedVersionReader:
    """Takes versions that a learner on this machine shares. Use it from one thread.

    A taken version stays until `keep` or `close` removes it: its memory is the learner's, and the worker's alone once
    the learner has replaced it.
    """

    def __init__(self, root: Path) -> None:
        """Remove what killed processes left."""
        self._root = root
        self._folder: ProcessFolder | None = None
        remove_leftovers(root)

    def take(self, checkpoint: Checkpoint, trusted_keys: Sequence[str] = ()) -> Path:
        """Return a folder with the verified `weights/` of a version, complete except below adapters.

        Raises:
            NotShared: no learner shares it, or its bytes are not those of the event.
            VersionRejected: no trusted key signed the version, or it was removed.
        """
        found = self._find(checkpoint)
        check_version(checkpoint, trusted_keys)
        if checkpoint["format"] == "delta" and trusted_keys:
            raise NotShared("unsigned", "the signature covers the delta, not the complete weights")
        try:
            if self._folder is None:
                self._folder = ProcessFolder(self._root, "worker")
            target = self._folder.path / found.name
            with _complete(target) as scratch:
                shutil.copytree(found, scratch / WEIGHTS, symlinks=True, copy_function=_link)
        except OSError as error:  # the learner removed it meanwhile, or it is on another file system
            raise NotShared("absent", str(error)) from None
        try:
            check_complete(checkpoint, target)
        except VersionRejected as error:
            shutil.rmtree(target)
            raise NotShared("differs", str(error)) from None
        return target / WEIGHTS

    def keep(self, folders: Collection[Path]) -> None:
        """Free the versions that none of the folders lies in."""
        if self._folder is not None:
            for path in self._folder.versions():
                if not any(folder.is_relative_to(path) for folder in folders):
                    shutil.rmtree(path)

    def close(self) -> None:
        """Free all versions."""
        if self._folder is not None:
            self._folder.close()
        self._folder = None

    def _find(self, checkpoint: Checkpoint) -> Path:
        try:
            user = _user_folder(self._root, create=False)
        except FileNotFoundError:
            raise NotShared("absent") from None
        except OSError as error:
            raise NotShared("unsafe", str(error)) from None
        name = folder_name(checkpoint["version"], checkpoint["event_id"])
        found = user.glob(f"learner-{quote(checkpoint['model'], safe='')}.*/{name}")
        for folder in found:
            return folder
        raise NotShared("absent")


class ProcessFolder:
    """A folder in memory that belongs to this process."""

    def __init__(self, root: Path, name: str) -> None:
        """Create it.

        Raises:
            OSError: `root` does not exist, or the folder of this user is open to others.
        """
        user = _user_folder(root, create=True)
        with _locked(user):  # else another process takes the new folder for a leftover
            self.path = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=user))
            self._lock = _open_lock(self.path)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def versions(self) -> list[Path]:
        """Return the complete versions in it."""
        return [path for path in self.path.iterdir() if not path.name.startswith(".")]

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_leftovers(root: Path) -> None:
    """Remove this user's folders whose processes have ended."""
    try:
        user = _user_folder(root, create=False)
        with _locked(user):
            for path in user.iterdir():
                if path.is_dir() and not _is_locked(path):
                    _log.info("removed %s, which a killed process left", path)
                    shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("cannot look for leftovers of killed processes: %s", error)


def _user_folder(root: Path, *, create: bool) -> Path:
    """Return this user's folder.

    Raises:
        FileNotFoundError: it does not exist.
        PermissionError: another user owns it or may enter it, so that its files could change after their check.
    """
    folder = root / f"stepstream-{os.geteuid()}"
    if create:
        folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user may enter: remove it")
    return folder


def _open_lock(folder: Path) -> int:
    return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)


def _is_locked(folder: Path) -> bool:
    lock = _open_lock(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = _open_lock(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def _complete(target: Path) -> Iterator[Path]:
    """Yield a folder that gets its name when the block ends without a fault."""
    scratch = target.with_name(f".{target.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
        scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _link(source: str, target: str) -> None:
    os.link(source, target, follow_symlinks=False)
