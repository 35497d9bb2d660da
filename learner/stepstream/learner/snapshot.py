"""What a trainer holds, whole and on the CPU, and the files that it becomes."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stepstream.learner import lora
from stepstream.learner.critic import CRITIC
from stepstream.learner.pretrained import WEIGHTS, save_model

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
