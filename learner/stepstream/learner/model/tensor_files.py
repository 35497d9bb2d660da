"""Read tensors from safetensors files, of a sharded tensor only the rows that this rank holds."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open
from torch import Tensor

from stepstream.learner.model.distributed import local_rows
from stepstream.versions.layout import indexed_files, training_folder

OPTIMIZER = "optimizer{suffix}.safetensors"
"""Files of the optimizer's state; the suffix is empty, or the number of one of several."""


class StoredTensors(Protocol):
    """Tensors by name, of which any rows can be read."""

    def __contains__(self, name: str) -> bool:
        """Return True if there is a tensor of this name."""

    def read(self, name: str, like: Tensor) -> Tensor:
        """Return the rows of a tensor that this rank holds of `like`, on the device of `like`."""


class TensorFiles:
    """The tensors of safetensors files, which stay mapped: only what is read takes memory."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Open the files.

        Raises:
            OSError: one is missing.
        """
        handles: list[Any] = [safe_open(file, "pt") for file in files]
        self._handles = {name: handle for handle in handles for name in handle.keys()}  # noqa: SIM118  # no mapping

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def read(self, name: str, like: Tensor) -> Tensor:
        """Return the rows of a tensor that this rank holds of `like`, on the device of `like`."""
        rows = local_rows(like)
        handle = self._handles[name]
        value: Tensor = handle.get_tensor(name) if rows is None else handle.get_slice(name)[slice(*rows)]
        return value.to(like.device)


class WholeTensors:
    """Tensors that this process has in memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def read(self, name: str, like: Tensor) -> Tensor:
        """Return the rows of a tensor that this rank holds of `like`, on the device of `like`."""
        rows = local_rows(like)
        value = self._tensors[name] if rows is None else self._tensors[name][slice(*rows)]
        return value.to(like.device)


def weight_files(folder: Path) -> TensorFiles:
    """Open the weights of a folder in Hugging Face form: those that the index names, or the single file."""
    return TensorFiles(folder / name for name in indexed_files(folder))


def optimizer_files(folder: Path) -> TensorFiles:
    """Open the optimizer's state in a version's folder; empty for a root, which has none."""
    return TensorFiles(sorted(training_folder(folder).glob(OPTIMIZER.format(suffix="*"))))
