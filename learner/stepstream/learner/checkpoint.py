"""The folder of one version: weights, optimizer state and the files that came with the model.

A folder appears under its name whole and durable, or not at all: it is written beside, forced to disk, and renamed.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stepstream.config import Settings
from stepstream.learner.pretrained import WEIGHTS
from stepstream.learner.snapshot import TRAINING, Snapshot
from stepstream.topics.events import CheckpointFile, new_checkpoint_file


class CheckpointFault(Exception):
    """A checkpoint's folder that cannot be used; the message names the folder and the file."""


def checkpoints_folder(settings: Settings) -> Path:
    """Where versions are written."""
    chosen = settings.learner.checkpoints
    return Path(chosen or settings.paths.data / "checkpoints").absolute()


def version_folder(settings: Settings, model: str, version: int) -> Path:
    """Folder of one version."""
    return checkpoints_folder(settings) / model / str(version)


def folder_of(uri: str) -> Path:
    """The local folder that a checkpoint's address names.

    Raises:
        CheckpointFault: it is not a `file://` address.
    """
    parts = urlsplit(uri)
    if parts.scheme != "file":
        raise CheckpointFault(f"{uri}: only file:// addresses can be read here")
    return Path(unquote(parts.path))


def write_root(source: Path, target: Path) -> list[CheckpointFile]:
    """Copies a model's folder as it is.

    Raises:
        CheckpointFault: it has no `model.safetensors` or `config.json`.
    """
    for needed in (WEIGHTS, "config.json"):
        if not (source / needed).is_file():
            raise CheckpointFault(f"{source} has no {needed}: give a folder in Hugging Face form")
    with _whole(target) as scratch:
        _copy(source, scratch, skip=TRAINING)
    return describe(target)


def write_version(snapshot: Snapshot, parent: Path, target: Path) -> list[CheckpointFile]:
    """Writes what a trainer holds, with the parent's other files (tokenizer, templates)."""
    with _whole(target) as scratch:
        fill(snapshot, parent, scratch)
    return describe(target)


def fill(snapshot: Snapshot, parent: Path, folder: Path) -> None:
    """Writes what a trainer holds into an existing folder, with the parent's other files."""
    snapshot.write(folder)
    _copy(parent, folder, skip=[*TRAINING, *(path.name for path in folder.iterdir())])


def describe(folder: Path) -> list[CheckpointFile]:
    """Every file below the folder with its SHA-256 and size, by name."""
    return [
        new_checkpoint_file(
            path=path.relative_to(folder).as_posix(), sha256=sha256_of(path), size_bytes=path.stat().st_size
        )
        for path in _files(folder)
    ]


def weights_sha256(files: Iterable[CheckpointFile]) -> str:
    """SHA-256 of `model.safetensors` among the described files."""
    return next(file["sha256"] for file in files if file["path"] == WEIGHTS)


def verify(folder: Path, files: Iterable[CheckpointFile]) -> None:
    """Checks every file against its hash.

    Raises:
        CheckpointFault: a file is missing or is not the one that was published.
    """
    for file in files:
        path = folder / file["path"]
        if not path.is_file():
            raise CheckpointFault(f"{path} is missing")
        if sha256_of(path) != file["sha256"]:
            raise CheckpointFault(f"{path} is not the file that was published: its SHA-256 differs")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A scratch folder that becomes `target`, durably, when the block ends without a fault.

    A folder of that name is what a crash left before its event was published: nobody knows it, it is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(left)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        yield scratch
        scratch.chmod(0o755)
        for path in _files(scratch):
            _sync(path)
        _sync(scratch)
        if target.exists():
            shutil.rmtree(target)
        scratch.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _copy(source: Path, target: Path, skip: Iterable[str]) -> None:
    shutil.copytree(source, target, ignore=lambda _folder, names: set(names) & set(skip), dirs_exist_ok=True)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
