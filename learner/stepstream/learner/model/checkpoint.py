"""Write, describe and verify the folder of a version: what is served in `weights/`, the learner's state in `training/`.

A folder appears under its name complete and durable, or not at all: it is written next to the target, synced and
renamed.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from safetensors import safe_open
from torch import Tensor

from stepstream.config import Settings
from stepstream.learner.model.snapshot import Snapshot, link
from stepstream.topics.events import CheckpointFile, new_checkpoint_file
from stepstream.versions import layout
from stepstream.versions.delta import write_delta
from stepstream.versions.layout import VersionRejected, indexed_files, role_of_path, weights_folder

_OTHER_FORMS = (".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".pt", ".pth", ".tflite")
"""Suffixes of files with the same weights in another form."""


class CheckpointFault(VersionRejected):
    """A checkpoint's folder cannot be used; the message names the folder and the file."""


def checkpoints_folder(settings: Settings) -> Path:
    """Return the folder below which versions are written."""
    chosen = settings.learner.checkpoints.removeprefix("file://")
    return Path(chosen or settings.paths.data / "checkpoints").absolute()


def cache_folder(settings: Settings) -> Path:
    """Return the folder of versions that the learner downloaded or completed."""
    return settings.paths.data.absolute() / "version-cache" / "learner"


def folder_of(uri: str) -> Path:
    """Return the local folder that a checkpoint's address names.

    Raises:
        CheckpointFault: it is not a `file://` address.
    """
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise CheckpointFault(f"{uri}: only file:// addresses are supported")
    return Path(unquote(parts.path))


def write_root(source: Path, target: Path) -> list[CheckpointFile]:
    """Copy what is served of a model's folder, without files of an earlier training, and describe the copy.

    Raises:
        CheckpointFault: it has no weights in safetensors form or no `config.json`.
    """
    source = weights_folder(source)
    weights = indexed_files(source)
    if not weights:
        raise CheckpointFault(f"{source} has no model.safetensors: give a folder in Hugging Face form")
    for needed in ("config.json", *weights):
        if not (source / needed).is_file():
            raise CheckpointFault(f"{source} has no {needed}: give a folder in Hugging Face form")
    with _atomic_folder(target) as scratch:
        served = scratch / layout.WEIGHTS
        served.mkdir()
        for name in weights:
            shutil.copyfile(source / name, served / name)
        _copy_beside_weights(source, served)
        write_index(served)
    return describe(target)


def write_version(
    snapshot: Snapshot, parent: Path, target: Path, *, adapters_only: bool = False
) -> list[CheckpointFile]:
    """Write a trainer's state and the parent's other files (tokenizer, templates), and describe the files.

    For rank 0; the other ranks call `Snapshot.help_write`. May be called again after an OSError.
    """
    with _atomic_folder(target) as scratch:
        if adapters_only:
            snapshot.write(scratch, adapters_only=True)
            _copy_beside_weights(weights_folder(parent), scratch / layout.WEIGHTS)
        else:
            write_files(snapshot, parent, scratch)
    files = describe(target)
    snapshot.end_write()
    return files


def write_as_delta(full: Path, parent: Path, target: Path) -> list[CheckpointFile] | None:
    """Write a version, complete in `full`, as the difference from its parent, and describe the files.

    Returns:
        None if the two have tensors of other names or shapes: then nothing was written.
    """
    try:
        with _atomic_folder(target) as scratch:
            served = scratch / layout.WEIGHTS
            served.mkdir()
            if not write_delta(full / layout.WEIGHTS, weights_folder(parent), served):
                raise _NoDelta
            _copy_beside_weights(full / layout.WEIGHTS, served)
            if (full / layout.TRAINING).is_dir():
                shutil.copytree(full / layout.TRAINING, scratch / layout.TRAINING, copy_function=link)
    except _NoDelta:
        return None
    return describe(target)


def write_copy(source: Path, target: Path) -> list[CheckpointFile]:
    """Write a version that is complete in `source` under another name, without a second copy where that is possible."""
    with _atomic_folder(target) as scratch:
        shutil.copytree(source, scratch, copy_function=link, dirs_exist_ok=True)
    return describe(target)


class _NoDelta(Exception):
    """A version does not have the tensors of its parent."""


def write_files(snapshot: Snapshot, parent: Path, folder: Path) -> None:
    """Write a trainer's state and the parent's other files into an existing folder."""
    snapshot.write(folder)
    _copy_beside_weights(weights_folder(parent), folder / layout.WEIGHTS)
    write_index(folder / layout.WEIGHTS)


def write_index(folder: Path) -> None:
    """Write the index of a Hugging Face folder whose only safetensors files are its weights.

    Raises:
        CheckpointFault: a file is not in safetensors form.
    """
    try:
        index = layout.index_of(folder.glob("*.safetensors"))
    except ValueError as error:
        raise CheckpointFault(str(error)) from None
    (folder / layout.INDEX).write_bytes(index)


def describe(folder: Path) -> list[CheckpointFile]:
    """Return every file below the folder with its role, SHA-256 and size, by name."""
    found = []
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        found.append(
            new_checkpoint_file(
                path=name, sha256=sha256_of(path), size_bytes=path.stat().st_size, role=role_of_path(name)
            )
        )
    return found


class StoredWeights:
    """The weights of a folder in Hugging Face form, read one tensor at a time."""

    def __init__(self, folder: Path) -> None:
        """Open the files that the index names.

        Raises:
            OSError: a file is missing.
        """
        folder = weights_folder(folder)
        files: list[Any] = [safe_open(folder / name, "pt") for name in indexed_files(folder)]
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118  # not a mapping

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor


def verify(folder: Path, files: Iterable[CheckpointFile]) -> None:
    """Check every file against its hash.

    Raises:
        CheckpointFault: a file is missing or differs from the published one.
    """
    for file in files:
        path = folder / file["path"]
        if not path.is_file():
            raise CheckpointFault(f"{path} is missing")
        if sha256_of(path) != file["sha256"]:
            raise CheckpointFault(f"{path} differs from the published file: its SHA-256 is another one")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def make_parents(target: Path, model: str = "") -> None:
    """Create the folders of a version's model and of all models, if they do not exist, readable by every user.

    Workers run as other users: the umask must not hide the versions from them. Folders above keep the umask's rights.
    A model's name may have slashes, so that more folders lie between; an empty one has none.
    """
    for folder in reversed(target.parents[: 2 + model.count("/")]):
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)


@contextmanager
def _atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a scratch folder and rename it to `target`, durably, when the block ends without a fault.

    An existing `target` was left by a crash before its event was sent. No event names it, so it is replaced.
    """
    make_parents(target)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        yield scratch
        # As in `make_parents`.
        for path in scratch.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
            _sync(path)
        scratch.chmod(0o755)
        _sync(scratch)
        if target.exists():
            shutil.rmtree(target)
        scratch.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _copy_beside_weights(source: Path, target: Path) -> None:
    """Copy the tokenizer, the templates and other small files of a Hugging Face folder that `target` does not have."""
    for path in _files(source):
        name = path.relative_to(source).as_posix()
        if path.suffix in _OTHER_FORMS or any(part.startswith(".") for part in Path(name).parts):
            continue
        if role_of_path(name) in ("tokenizer", "config") and not (target / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
