"""Write, describe and verify the folder of a version: what is served in `weights/`, the learner's state in `training/`.

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
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from stepstream.config import Settings
from stepstream.learner.model import lora
from stepstream.learner.model.critic import CRITIC
from stepstream.learner.model.pretrained import save_model
from stepstream.learner.model.tensor_files import TensorFiles
from stepstream.topics.events import CheckpointFile, new_checkpoint_file
from stepstream.versions import layout
from stepstream.versions.delta import write_delta
from stepstream.versions.layout import VersionRejected, indexed_files, role_of_path, training_folder, weights_folder

OPTIMIZER = "optimizer.safetensors"
_OTHER_FORMS = (".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".pt", ".pth", ".tflite")
"""Suffixes of files with the same weights in another form."""


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
        """Write `weights/` and `training/` into an existing folder; the same values give the same bytes."""
        served, training = folder / layout.WEIGHTS, folder / layout.TRAINING
        served.mkdir()
        training.mkdir()
        weights = self.weights if self.adapter is None else lora.merged(self.weights, self.adapter)
        save_model(self.model, weights, self.dtype, served)
        save_file(dict(self.optimizer), training / OPTIMIZER)
        if self.critic:
            save_file(dict(self.critic), training / CRITIC)
        if self.adapter is not None and self.base is not None:
            self._write_adapter(training / lora.ADAPTER)
            (training / lora.BASE).mkdir()
            for file in ("config.json", *indexed_files(self.base)):
                _link(self.base / file, training / lora.BASE / file)
            write_index(training / lora.BASE)

    def write_adapters(self, folder: Path) -> None:
        """Write `weights/adapter/` and `training/`, without the weights that the adapters belong to."""
        training = folder / layout.TRAINING
        training.mkdir()
        self._write_adapter(folder / layout.WEIGHTS / lora.ADAPTER)
        save_file(dict(self.optimizer), training / OPTIMIZER)
        if self.critic:
            save_file(dict(self.critic), training / CRITIC)

    def _write_adapter(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / lora.CONFIG).write_text(json.dumps(self.adapter, indent=2, sort_keys=True) + "\n")
        save_file(lora.adapters_in(self.weights), folder / lora.WEIGHTS)


def optimizer_files(folder: Path) -> TensorFiles:
    """Open the optimizer's state; empty for a root, which has none."""
    file = training_folder(folder) / OPTIMIZER
    return TensorFiles([file] if file.exists() else [])


def _link(source: str | Path, target: str | Path) -> None:
    """Create a hard link to a file that never changes; a copy across file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


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
    """Write a trainer's state and the parent's other files (tokenizer, templates), and describe the files."""
    with _atomic_folder(target) as scratch:
        if adapters_only:
            snapshot.write_adapters(scratch)
            _copy_beside_weights(weights_folder(parent), scratch / layout.WEIGHTS)
        else:
            write_files(snapshot, parent, scratch)
    return describe(target)


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
                shutil.copytree(full / layout.TRAINING, scratch / layout.TRAINING, copy_function=_link)
    except _NoDelta:
        return None
    return describe(target)


def write_copy(source: Path, target: Path) -> list[CheckpointFile]:
    """Write a version that is complete in `source` under another name, without a second copy where that is possible."""
    with _atomic_folder(target) as scratch:
        shutil.copytree(source, scratch, copy_function=_link, dirs_exist_ok=True)
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


@contextmanager
def _atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a scratch folder and rename it to `target`, durably, when the block ends without a fault.

    An existing `target` was left by a crash before its event was sent. No event names it, so it is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        yield scratch
        # Workers run as other users: the umask must not hide the files from them.
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
