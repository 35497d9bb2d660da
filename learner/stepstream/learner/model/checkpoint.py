"""Write, describe and verify the folder of a version: weights, optimizer state and the files of the base model.

A folder appears under its name complete and durable, or not at all: it is written next to the target, synced and
renamed. A `Snapshot` is the trainer's state, complete and on the CPU, from which the files are written.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stepstream.config import Settings
from stepstream.learner.model import lora
from stepstream.learner.model.critic import CRITIC
from stepstream.learner.model.pretrained import WEIGHTS, save_model
from stepstream.topics.events import CheckpointFile, new_checkpoint_file

OPTIMIZER = "optimizer.safetensors"
TRAINING_FILES = (OPTIMIZER, CRITIC, lora.ADAPTER, lora.BASE)
"""Files of a version's folder that only training needs; each version has its own."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a policy between two updates."""

    model: Any
    """Hugging Face model that gives the kind and the configuration."""
    weights: Mapping[str, Tensor]
    """By the names of the model's parameters, including those of adapters."""
    dtype: torch.dtype
    """Precision of the published weights."""
    optimizer: Mapping[str, Tensor]
    adapter: Mapping[str, Any] | None = None
    """Configuration of the adapters; None: all weights are trained."""
    base: Path | None = None
    """Folder of the model that the adapters belong to."""
    critic: Mapping[str, Tensor] = field(default_factory=dict)
    """Value head and its optimizer state; empty: no critic."""

    def write(self, folder: Path) -> None:
        """Write the files into an existing folder; the same values give the same bytes."""
        weights = self.weights if self.adapter is None else lora.merged(self.weights, self.adapter)
        save_model(self.model, weights, self.dtype, folder)
        save_file(dict(self.optimizer), folder / OPTIMIZER)
        if self.critic:
            save_file(dict(self.critic), folder / CRITIC)
        if self.adapter is not None and self.base is not None:
            (folder / lora.ADAPTER).mkdir()
            (folder / lora.ADAPTER / lora.CONFIG).write_text(json.dumps(self.adapter, indent=2, sort_keys=True) + "\n")
            save_file(lora.adapters_in(self.weights), folder / lora.ADAPTER / lora.WEIGHTS)
            (folder / lora.BASE).mkdir()
            for file in ("config.json", WEIGHTS):
                _link(self.base / file, folder / lora.BASE / file)


def load_optimizer(folder: Path) -> dict[str, Tensor]:
    """Return the optimizer's state; empty for a root, which has none."""
    file = folder / OPTIMIZER
    return load_file(file) if file.exists() else {}


def _link(source: Path, target: Path) -> None:
    """Create a hard link to a file that never changes; a copy across file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


class CheckpointFault(Exception):
    """A checkpoint's folder cannot be used; the message names the folder and the file."""


def checkpoints_folder(settings: Settings) -> Path:
    """Return the folder below which versions are written."""
    chosen = settings.learner.checkpoints
    return Path(chosen or settings.paths.data / "checkpoints").absolute()


def version_folder(settings: Settings, model: str, version: int) -> Path:
    """Return the folder of one version."""
    return checkpoints_folder(settings) / model / str(version)


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
    """Copy a model's folder, without files of an earlier training, and describe the copy.

    Raises:
        CheckpointFault: it has no `model.safetensors` or `config.json`.
    """
    for needed in (WEIGHTS, "config.json"):
        if not (source / needed).is_file():
            raise CheckpointFault(f"{source} has no {needed}: give a folder in Hugging Face form")
    with _atomic_folder(target) as scratch:
        _copy(source, scratch, skip=TRAINING_FILES)
    return describe(target)


def write_version(snapshot: Snapshot, parent: Path, target: Path) -> list[CheckpointFile]:
    """Write a trainer's state and the parent's other files (tokenizer, templates), and describe the files."""
    with _atomic_folder(target) as scratch:
        write_files(snapshot, parent, scratch)
    return describe(target)


def write_files(snapshot: Snapshot, parent: Path, folder: Path) -> None:
    """Write a trainer's state and the parent's other files into an existing folder."""
    snapshot.write(folder)
    _copy(parent, folder, skip=[*TRAINING_FILES, *(path.name for path in folder.iterdir())])


def describe(folder: Path) -> list[CheckpointFile]:
    """Return every file below the folder with its SHA-256 and size, by name."""
    return [
        new_checkpoint_file(
            path=path.relative_to(folder).as_posix(), sha256=sha256_of(path), size_bytes=path.stat().st_size
        )
        for path in _files(folder)
    ]


def weights_sha256(files: Iterable[CheckpointFile]) -> str:
    """Return the SHA-256 of `model.safetensors` among the described files."""
    return next(file["sha256"] for file in files if file["path"] == WEIGHTS)


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


@contextmanager
def _atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a scratch folder and rename it to `target`, durably, when the block ends without a fault.

    An existing `target` was left by a crash before its event was sent. No event names it, so it is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(leftover)
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
