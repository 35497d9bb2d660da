"""Fetch the files of a version that a reader needs, and check their digests, in one pass over the bytes."""

import errno
import hashlib
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stepstream.core.object_store import local_path, open_file
from stepstream.topics.events import Checkpoint, CheckpointFile
from stepstream.versions.cache import Kind, is_intact, new_file, new_folder, record_digests, touch
from stepstream.versions.check import check_files, check_unlisted, check_version
from stepstream.versions.delta import DeltaMismatch, apply_delta
from stepstream.versions.layout import (
    INDEX,
    SERVED_ROLES,
    WEIGHTS,
    NotStored,
    VersionRejected,
    index_of,
    name_of,
    role_of,
    served_path,
)
from stepstream.versions.merge import CannotMerge, merge_adapters
from stepstream.versions.signing import signed_bytes

Lookup = Callable[[str, int], Checkpoint | None]
"""Returns the event of a model's version; None: it was never published."""

_CHUNK = 1 << 20
_BESIDE_WEIGHTS = frozenset({"tokenizer", "config"})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Faults of this machine's disk, not of a version."""
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Errors of reading a file that has not its form."""


def fetch_version(
    checkpoint: Checkpoint,
    lookup: Lookup,
    cache_folder: Path,
    roles: Collection[str] = SERVED_ROLES,
    *,
    trusted_keys: Sequence[str] = (),
) -> Path:
    """Return a local folder in plain Hugging Face form with the version's verified files.

    Files on this machine are hashed in place; others are downloaded to the cache once. A version that is a delta or
    adapters is completed with its base there. Blocks for all of this.

    Args:
        checkpoint: the version.
        lookup: finds the version that a delta or adapters apply to.
        cache_folder: folder for what does not lie in that form on this machine.
        roles: roles of the files that the caller needs.
        trusted_keys: public keys, base64; one of them must have signed the version and its base. Empty: any may.

    Raises:
        VersionRejected: a file is missing, differs, leaves the folder, or is not in the event; the version was removed;
            or no trusted key signed it.
        NotStored: this machine cannot hold the files, as on a full disk.
    """
    check_version(checkpoint, trusted_keys)
    with _faults_as_rejections(checkpoint):
        if checkpoint["format"] == "full":
            return _files(checkpoint, cache_folder, roles)
        _check_bases(checkpoint, lookup, trusted_keys)
        own = _files(checkpoint, cache_folder, {*roles, "delta", "adapter"})
        target = _target(checkpoint, cache_folder, "complete")
        if not is_intact(target):
            shutil.rmtree(target, ignore_errors=True)
            base = fetch_base(checkpoint, lookup, cache_folder, trusted_keys)
            with new_folder(target) as scratch:
                _complete(checkpoint, own, base, scratch)
                record_digests(scratch)
        touch(target)
        return target


def fetch_adapter(
    checkpoint: Checkpoint,
    lookup: Lookup,
    cache_folder: Path,
    *,
    trusted_keys: Sequence[str] = (),
    base: Path | None = None,
) -> tuple[Path, Path]:
    """Return the verified folders of a `lora` version: its base in Hugging Face form, its adapters in peft's.

    `base` is the base's folder, if that was verified before.

    Raises:
        VersionRejected: as `fetch_version`; or the version is not of the format `lora`.
    """
    check_version(checkpoint, trusted_keys)
    if checkpoint["format"] != "lora":
        raise VersionRejected(f"{name_of(checkpoint)} has the format '{checkpoint['format']}', not 'lora'")
    if base is None:
        base = fetch_base(checkpoint, lookup, cache_folder, trusted_keys)
    with _faults_as_rejections(checkpoint):
        return base, _files(checkpoint, cache_folder, {"adapter"}) / "adapter"


def fetch_base(checkpoint: Checkpoint, lookup: Lookup, cache_folder: Path, trusted_keys: Sequence[str]) -> Path:
    """Return the verified folder, in Hugging Face form, of the version that a delta or adapters apply to.

    Raises:
        VersionRejected: as `fetch_version`; or that version is not published.
    """
    return fetch_version(_base_of(checkpoint, lookup), lookup, cache_folder, trusted_keys=trusted_keys)


def fetch_whole(checkpoint: Checkpoint, lookup: Lookup, cache_folder: Path) -> Path:
    """Return a local folder with `weights/`, complete, and `training/`, from which the learner continues.

    Raises:
        VersionRejected: as `fetch_version`.
    """
    check_version(checkpoint, ())
    local = local_path(checkpoint["uri"])
    if checkpoint["format"] == "full" and local is not None:
        check_files(checkpoint, local, checkpoint["files"])
        return local
    with _faults_as_rejections(checkpoint):
        return _whole(checkpoint, lookup, cache_folder)


def _whole(checkpoint: Checkpoint, lookup: Lookup, cache_folder: Path) -> Path:
    own = _whole_files(checkpoint, cache_folder)
    if checkpoint["format"] == "full":
        return own
    target = _target(checkpoint, cache_folder, "whole")
    weights = fetch_version(checkpoint, lookup, cache_folder)
    if not target.is_dir():
        with new_folder(target) as scratch:
            (scratch / WEIGHTS).symlink_to(weights)
            (scratch / "training").mkdir()
            if (own / "training").is_dir():
                for path in (own / "training").iterdir():
                    (scratch / "training" / path.name).symlink_to(path)
            if checkpoint["format"] == "lora":
                (scratch / "training/adapter").symlink_to(own / WEIGHTS / "adapter")
                base = fetch_base(checkpoint, lookup, cache_folder, ())
                (scratch / "training/base").symlink_to(base)
    touch(target)
    return target


def _base_of(checkpoint: Checkpoint, lookup: Lookup) -> Checkpoint:
    number = checkpoint["base_version"]
    base = None if number is None or number >= checkpoint["version"] else lookup(checkpoint["model"], number)
    if base is None:
        raise VersionRejected(f"{name_of(checkpoint)}: its base, version {number}, is not published")
    return base


def _check_bases(checkpoint: Checkpoint, lookup: Lookup, trusted_keys: Sequence[str]) -> None:
    """Check the events of all versions that one is completed from, without their files."""
    while checkpoint["format"] != "full":
        checkpoint = _base_of(checkpoint, lookup)
        check_version(checkpoint, trusted_keys)


def _complete(checkpoint: Checkpoint, own: Path, base: Path, target: Path) -> None:
    """Write the full weights of a delta or of adapters, and the files beside them."""
    try:
        if checkpoint["format"] == "delta":
            apply_delta(own, base, target)
        else:
            merge_adapters(own / "adapter", base, target)
    except (DeltaMismatch, CannotMerge, OSError, *_MALFORMED) as error:
        if _is_no_room(error):
            raise
        raise VersionRejected(f"{name_of(checkpoint)}: cannot be completed from its base: {error}") from error
    (target / INDEX).write_bytes(index_of(target.glob("*.safetensors")))
    for file in checkpoint["files"]:
        if role_of(file) in _BESIDE_WEIGHTS:
            path = target / served_path(file["path"])
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(own / served_path(file["path"]), path)


def _files(checkpoint: Checkpoint, cache_folder: Path, roles: Collection[str]) -> Path:
    """Return a local folder with the verified files of some roles, by their paths below the Hugging Face folder."""
    needed = [file for file in checkpoint["files"] if role_of(file) in roles]
    in_part = any(file["path"].startswith(f"{WEIGHTS}/") for file in needed)
    folder = local_path(checkpoint["uri"])
    if folder is None:
        folder = _downloaded(checkpoint, cache_folder, needed)
        return folder / WEIGHTS if in_part else folder
    check_files(checkpoint, folder, needed)
    if in_part:
        check_unlisted(checkpoint, folder / WEIGHTS, f"{WEIGHTS}/")
        return folder / WEIGHTS
    check_unlisted(checkpoint, folder, "")
    if len(needed) == len(checkpoint["files"]):
        return folder
    return _linked(checkpoint, folder, needed, cache_folder)


def _whole_files(checkpoint: Checkpoint, cache_folder: Path) -> Path:
    local = local_path(checkpoint["uri"])
    if local is None:
        return _downloaded(checkpoint, cache_folder, checkpoint["files"])
    check_files(checkpoint, local, checkpoint["files"])
    return local


def _downloaded(checkpoint: Checkpoint, cache_folder: Path, files: Sequence[CheckpointFile]) -> Path:
    """Download files into the cache and hash them on the way; one that is there already is only hashed."""
    target = _target(checkpoint, cache_folder, "files")
    name = name_of(checkpoint)
    for file in files:
        path = target / file["path"]
        if path.is_file():
            try:
                check_files(checkpoint, target, [file])
                continue
            except VersionRejected:
                path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, room = hashlib.sha256(), file["size_bytes"]
        try:
            with (
                new_file(path) as part,
                open_file(checkpoint["uri"], file["path"]) as stream,
                part.open("wb") as out,
            ):
                while chunk := stream.read(_CHUNK):
                    room -= len(chunk)
                    if room < 0:
                        raise VersionRejected(
                            f"{name}: {file['path']} has more bytes than the {file['size_bytes']} of its event"
                        )
                    digest.update(chunk)
                    out.write(chunk)
                if digest.hexdigest() != file["sha256"]:
                    raise VersionRejected(
                        f"{name}: {file['path']} has sha256 {digest.hexdigest()}, its event has {file['sha256']}"
                    )
        except OSError as error:
            if _is_no_room(error):
                raise
            raise VersionRejected(f"{name}: {checkpoint['uri']}/{file['path']} cannot be read: {error}") from error
    touch(target)
    return target


def _linked(checkpoint: Checkpoint, folder: Path, files: Iterable[CheckpointFile], cache_folder: Path) -> Path:
    """Return a folder of links to some files of a version in the old layout, with an index of its weights."""
    target = _target(checkpoint, cache_folder, "linked")
    if target.is_dir():
        return target
    with new_folder(target) as scratch:
        weights = []
        for file in files:
            link = scratch / served_path(file["path"])
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder / file["path"])
            if link.suffix == ".safetensors":
                weights.append(link)
        if weights and not (scratch / INDEX).exists():
            (scratch / INDEX).write_bytes(index_of(weights))
    return target


def _target(checkpoint: Checkpoint, cache_folder: Path, kind: Kind) -> Path:
    identity = hashlib.sha256(signed_bytes(checkpoint)).hexdigest()[:12]
    return cache_folder / checkpoint["model"] / f"{checkpoint['version']}-{identity}.{kind}"


@contextmanager
def _faults_as_rejections(checkpoint: Checkpoint) -> Iterator[None]:
    """Raise what else fails in fetching a version as its rejection, so that no fault of one version ends a worker."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise NotStored(
            f"{name_of(checkpoint)}: this machine cannot hold its files: {str(error) or 'out of memory'}"
        ) from error
    except _MALFORMED as error:
        raise VersionRejected(f"{name_of(checkpoint)}: a file is malformed: {error!r}") from error


def _is_no_room(error: BaseException | None) -> bool:
    """Return True if an error, or one that caused it, says that the disk takes no more."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return True
        error = error.__cause__
    return False
