"""The folder of one version: weights, optimizer state and the files that came with the model.

A folder appears under its name whole and durable, or not at all: it is written beside, forced to disk, and renamed.

What a trainer holds, whole and on the CPU, and the files that it becomes.
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
TRAINING = (OPTIMIZER, CRITIC, lora.ADAPTER, lora.BASE)
"""What a version's folder holds for training alone: workers do not need it, another version has its own."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A policy between two updates."""

    model: Any
    """Whose kind the weights are of."""
    weights: Mapping[str, Tensor]
    """By the names of the model's parameters, those of adapters among them."""
    dtype: torch.dtype
    """In which workers get them."""
    optimizer: Mapping[str, Tensor]
    adapter: Mapping[str, Any] | None = None
    """Configuration of the adapters; None where all weights are trained."""
    base: Path | None = None
    """Folder of the model that the adapters belong to."""
    critic: Mapping[str, Tensor] = field(default_factory=dict)
    """Value head and its optimizer state; empty where nothing asks for a critic."""

    def write(self, folder: Path) -> None:
        """Writes the files into an existing folder; the same values give the same bytes."""
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
    """The optimizer's state; empty for a root, which has none."""
    file = folder / OPTIMIZER
    return load_file(file) if file.exists() else {}


def _link(source: Path, target: Path) -> None:
    """A second name for a file that nobody changes; a copy where the two are on different file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


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
