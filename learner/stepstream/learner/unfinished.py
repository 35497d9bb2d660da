"""Mark the folders of versions that are being written, and remove what a crash left of them.

A marker is a file beside the folder, locked as long as its writer lives; in a store it is an object. It goes once the
version's event is durable. So a folder with a marker that nobody locks belongs to a version that was never published,
unless an event names it. Folders without a marker are never touched.
"""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from stepstream.core.object_store import is_remote, read_objects, remove, write_object
from stepstream.learner.model.checkpoint import make_parents
from stepstream.topics.events import Checkpoint
from stepstream.topics.ids import now_us

log = logging.getLogger(__name__)

_PREFIX, _SUFFIX = ".", ".writing"
_STORE_FOLDER = ".writing"
_DAY_US = 24 * 3600 * 1_000_000


@contextmanager
def marked_folder(folder: Path, model: str = "") -> Iterator[None]:
    """Mark a model's folder that is about to be written, and remove the marker when the block ends without a fault.

    A fault leaves the marker, so that the model's next learner removes the folder unless an event names it.
    """
    marker = folder.with_name(f"{_PREFIX}{folder.name}{_SUFFIX}")
    handle = _locked(marker, model)
    try:
        yield
        with _logged(marker):
            marker.unlink(missing_ok=True)
    finally:
        os.close(handle)


@contextmanager
def marked_address(address: str, model: str, name: str, owner: str) -> Iterator[None]:
    """Mark a folder of a store, as `marked_folder` does; does nothing for a folder on this machine.

    Args:
        address: address of all models.
        model: model of the version.
        name: name of the version's folder.
        owner: transactional id under which its event is sent.

    Raises:
        OSError: the store does not accept the marker.
    """
    if not is_remote(address):
        yield
        return
    folder = f"{address.rstrip('/')}/{model}/{_STORE_FOLDER}"
    content = json.dumps({"owner": owner, "started_at_us": now_us()}).encode()
    write_object(folder, name, content)
    try:
        yield
    except BaseException:
        # A newer learner may have removed it while this one was still uploading.
        with _logged(f"{folder}/{name}"):
            write_object(folder, name, content)
        raise
    with _logged(f"{folder}/{name}"):
        remove(folder, name)


@contextmanager
def _logged(marker: Path | str) -> Iterator[None]:
    """Log a fault that must not change the outcome of a publication: a restart handles the marker."""
    try:
        yield
    except OSError as error:
        log.warning("the marker %s was not updated: %s", marker, error)


def remove_unfinished(
    checkpoints: Iterable[Checkpoint], folders: Iterable[Path], address: str, model: str, owner: str
) -> list[str]:
    """Remove what crashed writers of a model left. Call it as the owner of the model's versions.

    On this machine, what a living process writes is left alone. In a store, what was written under the owner's
    transactional id is removed at once, since its writer is fenced; a root in preparation after a day.

    Args:
        checkpoints: all versions of the model.
        folders: folders on this machine that hold the model's folders of versions.
        address: where versions are published.
        model: name of the model.
        owner: transactional id of the caller.

    Returns:
        The folders that were removed.
    """
    named = {PurePosixPath(one["uri"]).name for one in checkpoints}
    removed = [found for folder in folders for found in _remove_local(folder, named)]
    if is_remote(address):
        try:
            removed += _remove_remote(f"{address.rstrip('/')}/{model}", named, owner)
        except OSError as error:
            log.warning("what crashed learners left at %s was not removed, a restart tries again: %s", address, error)
    for found in removed:
        log.info("removed %s: a crash left it before its version was published", found)
    return removed


def _remove_local(root: Path, named: Collection[str]) -> Iterator[str]:
    for marker in sorted(root.glob(f"{_PREFIX}*{_SUFFIX}")):
        name = marker.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        try:
            handle = os.open(marker, os.O_RDWR)
        except OSError:
            continue  # its writer has just ended
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = [] if name in named else [root / name, *root.glob(f".{name}-*")]
            for folder in left:
                if folder.is_dir():
                    shutil.rmtree(folder)
                    yield str(folder)
            marker.unlink(missing_ok=True)
        except OSError as error:
            log.info("%s is left alone: its writer lives, or it cannot be removed (%s)", root / name, error)
        finally:
            os.close(handle)


def _remove_remote(root: str, named: Collection[str], owner: str) -> Iterator[str]:
    for name, content in read_objects(f"{root}/{_STORE_FOLDER}"):
        marker: dict[str, Any] = json.loads(content)
        if name not in named:
            if marker["owner"] != owner and now_us() - marker["started_at_us"] < _DAY_US:
                continue
            remove(f"{root}/{name}")
            yield f"{root}/{name}"
        remove(f"{root}/{_STORE_FOLDER}", name)


def _locked(marker: Path, model: str) -> int:
    """Create a marker and lock it; return its file descriptor."""
    make_parents(marker, model)
    while True:
        handle = os.open(marker, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            log.warning("%s: this file system has no locks (%s): start one learner of a model at a time", marker, error)
            return handle
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)  # another process took it for a leftover before it was locked
