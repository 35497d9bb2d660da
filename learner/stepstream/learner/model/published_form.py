"""Lay out the weights of a model as transformers saves them: names, files and configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepstream.learner.model.row_files import RowFile, Rows, split_files
from stepstream.versions import layout

_PATTERN = "model{suffix}.safetensors"


class PublishedForm:
    """The form in which `save_pretrained` writes a model."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        """Derive the form. Not for threads: transformers changes the default type of the process meanwhile.

        Args:
            model: Hugging Face model, which may be sharded or have adapters: only its class and configuration matter.
            dtype: type of the published weights.
        """
        self.dtype = dtype
        with torch.device("meta"):
            self._model = type(model)._from_config(model.config, dtype=dtype)
        self._model._weight_conversions = getattr(model, "_weight_conversions", None)
        self._model.config.dtype = str(dtype).removeprefix("torch.")
        self._model.config.architectures = [type(self._model).__name__.removeprefix("FSDP")]

    def write_config(self, folder: Path) -> None:
        """Write `config.json`."""
        self._model.config.save_pretrained(folder)

    def file_names(self, weights: Mapping[str, Rows]) -> dict[str, str] | None:
        """Return the name in the model of each tensor of the files, in their order.

        Returns:
            None if files have other tensors than the model, as those of some mixtures of experts: see `converted`.
        """
        empty = {name: torch.empty(rows.shape, dtype=rows.dtype, device="meta") for name, rows in weights.items()}
        own = {id(value): name for name, value in empty.items()}
        found = {name: own.get(id(value)) for name, value in self._reverted(empty).items()}
        names = {name: given for name, given in found.items() if given is not None}
        return names if len(names) == len(found) == len(own) else None

    def converted(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of the files from those of the model, all of them whole."""
        return self._reverted(
            {name: weight.to(self.dtype) if weight.is_floating_point() else weight for name, weight in weights.items()}
        )

    def _reverted(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        from transformers.core_model_loading import revert_weight_conversion  # takes seconds to import

        reverted: dict[str, Tensor] = revert_weight_conversion(self._model, weights)
        return reverted


def weight_files(weights: Mapping[str, Rows]) -> list[RowFile]:
    """Return the files of weights, which have the names of the files."""
    return split_files(layout.WEIGHTS, weights, _PATTERN, marked=True)
