"""Keep versions that were downloaded or completed on this machine: written whole, found intact, below a limit.

Several processes may share a cache. An unfinished file or folder has a name that begins with a dot, and its writer's
lock: so others can tell it from the leftovers of a killed process.
"""

import errno
import fcntl
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from stepstream.versions.digests import file_digests

_log = logging.getLogger(__name__)

Kind = Literal["files", "complete", "whole", "linked"]
_KINDS: tuple[Kind, ...] = get_args(Kind)
"""Suffixes of the cache's folders."""

_PART = ".part"
"""Suffix of a file in download."""
_DIGESTS = ".sha256.json"
"""File of a completed folder with the digest of each other file, by path."""
_EXISTS = (errno.EEXIST, errno.ENOTEMPTY)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder that gets its name when the block ends without a fault, unless another process was first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch, handle = _locked(lambda: Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-")))
    try:
        yield scratch
        scratch.chmod(0o755)
        try:
            os.rename(scratch, target)
        except OSError as error:
            if error.errno not in _EXISTS:
                raise
            shutil.rmtree(scratch, ignore_errors=True)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    finally:
        os.close(handle)


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield an empty file, in a folder that exists, that gets its name when the block ends without a fault."""

    def create() -> Path:
        handle, name = tempfile.mkstemp(_PART, f".{target.name}-", target.parent)
        os.close(handle)
        return Path(name)

    part, handle = _locked(create)
    try:
        yield part
        part.chmod(0o644)
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
        os.close(handle)


def remove_partial(cache_folder: Path) -> list[Path]:
    """Remove what killed processes left half written in a cache, and return it; what a living one writes stays.

    Without locks, as on some network file systems, nothing is removed here.
    """
    removed = []
    for parent, folders, files in os.walk(cache_folder):
        unfinished = [name for name in folders if name.startswith(".") and any(f".{kind}-" in name for kind in _KINDS)]
        folders[:] = [name for name in folders if name not in unfinished]
        unfinished += [name for name in files if name.startswith(".") and name.endswith(_PART)]
        for path in (Path(parent, name) for name in unfinished):
            with suppress(OSError):  # its writer has just ended, or it lives
                handle = os.open(path, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if path.is_dir():
                        shutil.rmtree(path)
                    else:
                        path.unlink()
                finally:
                    os.close(handle)
                removed.append(path)
                _log.info("removed %s: a killed process left it half written", path)
    return removed


def record_digests(folder: Path) -> None:
    """Note the digest of each file of a folder in it, for `is_intact`."""
    (folder / _DIGESTS).write_text(json.dumps(_digests(folder), indent=1, sort_keys=True) + "\n")


def is_intact(folder: Path) -> bool:
    """Return True if a folder has exactly the files, with the bytes, that `record_digests` noted. Reads all of them."""
    try:
        return bool(json.loads((folder / _DIGESTS).read_bytes()) == _digests(folder))
    except (OSError, ValueError):
        return False


def prune_cache(cache_folder: Path, limit_bytes: int, keep: Collection[Path]) -> None:
    """Remove the folders that were used longest ago until the cache fits its limit, except those to keep."""
    # A model's name may have slashes, so that its versions lie deeper; unfinished ones have a prefix and a suffix.
    found = {folder for kind in _KINDS for folder in cache_folder.rglob(f"*.{kind}*")}
    prune_folders(sorted(found), limit_bytes, keep)


def prune_folders(folders: Iterable[Path], limit_bytes: int, keep: Collection[Path]) -> None:
    """Remove the folders that were used longest ago until all are below a limit.

    Args:
        folders: folders of versions; what is no folder is ignored.
        limit_bytes: limit of their sum.
        keep: paths in use; the folders that these lie in or link to are never removed.
    """
    own = [path for path in folders if path.is_dir() and not path.is_symlink()]
    sizes = {
        folder: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
        for folder in own
    }
    total = sum(sizes.values())
    if total <= limit_bytes:
        return
    linked = {link.resolve() for kept in keep for link in kept.rglob("*") if link.is_symlink()}
    used = {kept.resolve() for kept in keep} | linked
    for folder in sorted(own, key=lambda path: path.stat().st_mtime):
        if total <= limit_bytes:
            return
        if not any(folder.resolve() in (kept, *kept.parents) for kept in used):
            shutil.rmtree(folder)
            total -= sizes[folder]


def touch(folder: Path) -> None:
    """Note that a folder was used now."""
    os.utime(folder)


def _digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / _DIGESTS]
    digests = file_digests(files)
    return {path.relative_to(folder).as_posix(): digest for path, digest in zip(files, digests, strict=True)}


def _locked(create: Callable[[], Path]) -> tuple[Path, int]:
    """Create a file or folder and lock it; return it and the file descriptor that holds the lock."""
    while True:
        path = create()
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process took it for a leftover
        with suppress(OSError):  # a file system without locks: nobody removes it either
            fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return path, handle
        os.close(handle)
