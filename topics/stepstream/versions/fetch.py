"""Fetch the files of a version that a reader needs, and check their digests, in one pass over the bytes."""

import hashlib
import os
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stepstream.topics.events import Checkpoint, CheckpointFile
from stepstream.versions.layout import (
    INDEX,
    SERVED_ROLES,
    WEIGHTS,
    VersionRejected,
    check_paths,
    folder_name,
    index_of,
    name_of,
    role_of,
    served_path,
)


def fetch_version(checkpoint: Checkpoint, cache_folder: Path, roles: Collection[str] = SERVED_ROLES) -> Path:
    """Return a local folder in plain Hugging Face form with the version's verified files.

    Files on this machine are hashed in place. Blocks for the reads.

    Args:
        checkpoint: the version.
        cache_folder: folder for what does not lie in that form on this machine.
        roles: roles of the files that the caller needs.

    Raises:
        VersionRejected: a file is missing, differs, leaves the folder, or is not in the event.
    """
    check_paths(checkpoint)
    folder = local_folder(checkpoint)
    needed = [file for file in checkpoint["files"] if role_of(file) in roles]
    check_files(checkpoint, folder, needed)
    if any(file["path"].startswith(f"{WEIGHTS}/") for file in needed):
        _check_unlisted(checkpoint, folder / WEIGHTS, f"{WEIGHTS}/")
        return folder / WEIGHTS
    _check_unlisted(checkpoint, folder, "")
    if len(needed) == len(checkpoint["files"]):
        return folder
    return _linked(checkpoint, folder, needed, cache_folder)


def local_folder(checkpoint: Checkpoint) -> Path:
    """Return the folder that a version's address names on this machine.

    Raises:
        VersionRejected: the address is not a `file://` address, or the folder does not exist.
    """
    address = urlsplit(checkpoint["uri"])
    if address.scheme != "file":
        raise VersionRejected(f"{name_of(checkpoint)}: only file:// addresses are loaded, not {checkpoint['uri']}")
    return Path(unquote(address.path))


def check_files(checkpoint: Checkpoint, folder: Path, files: Iterable[CheckpointFile]) -> None:
    """Check files below a version's folder against their digests.

    Raises:
        VersionRejected: a file is missing, is a link, or differs from the published one.
    """
    name = name_of(checkpoint)
    for file in files:
        path = folder / file["path"]
        if any((folder / part).is_symlink() for part in _prefixes(file["path"])):
            raise VersionRejected(f"{name}: {path} is a symbolic link, which may lead out of the version's folder")
        try:
            with path.open("rb") as stream:
                actual = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise VersionRejected(f"{name}: {path} cannot be read: {error.strerror}") from error
        if actual != file["sha256"]:
            raise VersionRejected(f"{name}: {file['path']} has sha256 {actual}, its event has {file['sha256']}")


def _check_unlisted(checkpoint: Checkpoint, folder: Path, prefix: str) -> None:
    """Reject what a loader might take for a file of the version."""
    listed = {file["path"] for file in checkpoint["files"]}
    found = folder.rglob("*") if prefix else folder.iterdir()
    unlisted = sorted(path.name for path in found if path.is_file() and _below(path, folder, prefix) not in listed)
    if unlisted:
        raise VersionRejected(f"{name_of(checkpoint)}: its event does not list {', '.join(unlisted)}")


def _below(path: Path, folder: Path, prefix: str) -> str:
    return prefix + path.relative_to(folder).as_posix()


def _prefixes(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _linked(checkpoint: Checkpoint, folder: Path, files: Iterable[CheckpointFile], cache_folder: Path) -> Path:
    """Return a folder of links to some files of a version in the old layout, with an index of its weights."""
    target = cache_folder / checkpoint["model"] / folder_name(checkpoint["version"], checkpoint["event_id"])
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    weights = []
    for file in files:
        link = scratch / served_path(file["path"])
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder / file["path"])
        if link.suffix == ".safetensors":
            weights.append(link)
    if weights and not (scratch / INDEX).exists():
        (scratch / INDEX).write_bytes(index_of(weights))
    scratch.chmod(0o755)
    os.rename(scratch, target)
    return target
