"""Check a version: its event, the digests of its files, and that its folder has no other files."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from stepstream.topics.events import Checkpoint, CheckpointFile, new_checkpoint_file
from stepstream.versions.digests import file_digests
from stepstream.versions.layout import (
    INDEX,
    LOADED_ROLES,
    SERVED_ROLES,
    WEIGHTS,
    VersionRejected,
    check_paths,
    index_of,
    name_of,
    role_of,
    weights_sha256,
)
from stepstream.versions.signing import check_signature


def check_version(checkpoint: Checkpoint, trusted_keys: Sequence[str]) -> None:
    """Check an event, without its files.

    Raises:
        VersionRejected: a path leaves the folder, no trusted key signed it, it was removed, or its form is unknown.
    """
    check_paths(checkpoint)
    check_signature(checkpoint, trusted_keys)
    if checkpoint["removed_at_us"] is not None:
        raise VersionRejected(f"{name_of(checkpoint)}: its files were removed: {checkpoint['removal_reason']}")
    if checkpoint["format"] not in ("full", "lora", "delta"):
        raise VersionRejected(f"{name_of(checkpoint)}: the format '{checkpoint['format']}' is unknown")


def check_files(checkpoint: Checkpoint, folder: Path, files: Iterable[CheckpointFile]) -> None:
    """Check files below a version's folder against their digests.

    Raises:
        VersionRejected: a file is missing, may not be read, is a link, or differs from the published one.
    """
    name, expected = name_of(checkpoint), list(files)
    for file in expected:
        if any(_is_link(name, folder / part) for part in _prefixes(file["path"])):
            raise VersionRejected(
                f"{name}: {folder / file['path']} is a symbolic link, which may lead out of the version's folder"
            )
    actual = _digests(name, [folder / file["path"] for file in expected])
    for file, digest in zip(expected, actual, strict=True):
        if digest != file["sha256"]:
            raise VersionRejected(f"{name}: {file['path']} has sha256 {digest}, its event has {file['sha256']}")


def check_unlisted(checkpoint: Checkpoint, folder: Path, prefix: str, also: Iterable[str] = ()) -> None:
    """Check that a loader finds no file but those that the event lists for it.

    Below `weights/`, files of the training state count as not listed: no signature covers them and no worker hashes
    them, but loaders would take a template, say, by its name.

    Args:
        checkpoint: the version.
        folder: folder that a loader reads.
        prefix: its path below the version's folder, with `/`; empty: the version's folder itself.
        also: paths that the event need not list.

    Raises:
        VersionRejected: there is such a file, or the folder may not be read.
    """
    listed = {file["path"] for file in checkpoint["files"] if not prefix or role_of(file) in LOADED_ROLES} | set(also)
    try:
        unlisted = sorted(
            path.name
            for path in folder.rglob("*")
            if path.is_file() and prefix + path.relative_to(folder).as_posix() not in listed
        )
    except OSError as error:
        raise _unreadable(name_of(checkpoint), folder, error) from error
    if unlisted:
        raise VersionRejected(f"{name_of(checkpoint)}: its event does not list {', '.join(unlisted)}")


def check_complete(checkpoint: Checkpoint, folder: Path) -> None:
    """Check a folder with the complete `weights/` of a version, also of one that is published as a delta.

    Raises:
        VersionRejected: a file is missing, differs from the version's, or is none of them.
    """
    prefix = f"{WEIGHTS}/"
    roles = {"tokenizer", "config", "adapter"} if checkpoint["format"] != "full" else SERVED_ROLES
    check_files(checkpoint, folder, [file for file in checkpoint["files"] if role_of(file) in roles])
    rebuilt: list[str] = []
    if checkpoint["format"] == "delta":
        rebuilt = [INDEX, *sorted(path.name for path in (folder / WEIGHTS).glob("*.safetensors"))]
        _check_rebuilt(checkpoint, folder / WEIGHTS, rebuilt[1:])
    check_unlisted(checkpoint, folder / WEIGHTS, prefix, [prefix + name for name in rebuilt])


def _check_rebuilt(checkpoint: Checkpoint, weights: Path, names: Sequence[str]) -> None:
    """Check the weights of a delta by the digest of the whole, and their index by its content."""
    name, files = name_of(checkpoint), [weights / each for each in names]
    if any(file.is_symlink() for file in files):
        raise VersionRejected(f"{name}: {weights} has a symbolic link")
    digests = _digests(name, files)
    digest = weights_sha256(
        new_checkpoint_file(path=f"{WEIGHTS}/{each}", sha256=sha256, size_bytes=0, role="weights")
        for each, sha256 in zip(names, digests, strict=True)
    )
    if digest != checkpoint["weights_sha256"]:
        raise VersionRejected(f"{name}: its weights have sha256 {digest}, its event has {checkpoint['weights_sha256']}")
    try:
        is_right = (weights / INDEX).read_bytes() == index_of(files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VersionRejected(f"{name}: {weights / INDEX} cannot be checked: {error}") from error
    if not is_right:
        raise VersionRejected(f"{name}: {weights / INDEX} is not the index of its files")


def _digests(name: str, files: Sequence[Path]) -> list[str]:
    try:
        return file_digests(files)
    except OSError as error:
        raise _unreadable(name, Path(error.filename or files[0]), error) from error


def _is_link(name: str, path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError as error:  # a folder that this process may not enter
        raise _unreadable(name, path, error) from error


def _unreadable(name: str, path: Path, error: OSError) -> VersionRejected:
    return VersionRejected(f"{name}: {path} cannot be read: {error.strerror or error}")


def _prefixes(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
