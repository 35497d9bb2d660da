"""Damage the folder of a version's weights."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def cut(folder: Path) -> None:
    """Remove the end of the weights."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def emptied(folder: Path) -> None:
    """Remove the weights."""
    for file in folder.glob("*.safetensors*"):
        file.unlink()


def with_tensor(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """Return a function that changes one tensor."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        name = "model.layers.0.mlp.up_proj.weight"
        save_file(tensors | {name: change(tensors[name]).contiguous()}, folder / "model.safetensors")

    return apply


def without_a_tensor(folder: Path) -> None:
    """Remove one tensor."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
