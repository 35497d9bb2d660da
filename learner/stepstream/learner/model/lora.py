"""Train low-rank adapters (Hu et al. 2021, arXiv:2106.09685, eq. 3): W + (α / r) B A, with only A and B trained.

Such a version is published merged, as ordinary weights that any worker loads. Its `training/` also has `adapter/`, in
peft's form, and `base/`, the model below the adapters. Training continues from these two, since W cannot be recovered
from the sum bit for bit.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from stepstream.config import LearnerSettings
from stepstream.learner.model.pretrained import CannotTrain
from stepstream.versions.layout import training_folder, weights_folder

ADAPTER, BASE = "adapter", "base"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _NAME = "base_model.model.", "default"
_A, _B = f".lora_A.{_NAME}.weight", f".lora_B.{_NAME}.weight"


def base_folder(folder: Path, config: LearnerSettings) -> Path:
    """Return the folder of the model to which a learner that continues from `folder` adds adapters.

    If the folder's adapters have another shape than the settings, it is the merged model, with new adapters.
    """
    return training_folder(folder) / BASE if continues(folder, config) else weights_folder(folder)


def continues(folder: Path, config: LearnerSettings) -> bool:
    """Return True if the folder has adapters of the configured shape."""
    file = training_folder(folder) / ADAPTER / CONFIG
    return (
        config.lora_rank > 0
        and file.is_file()
        and _shape(json.loads(file.read_bytes())) == _shape(_configuration(config))
    )


def add_adapters(model: Any, config: LearnerSettings) -> dict[str, Any]:
    """Add adapters to the model that do not change its output yet, and freeze everything else.

    Returns:
        Their configuration in peft's form.

    Raises:
        CannotTrain: no layer of the model has a name of `learner.lora_targets`.
    """
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds to import
    from transformers.pytorch_utils import Conv1D

    transposed = any(isinstance(module, Conv1D) for module in model.modules())
    adapter_config = _configuration(config) | {"fan_in_fan_out": transposed, "base_model_name_or_path": BASE}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            inject_adapter_in_model(
                LoraConfig(
                    r=config.lora_rank,
                    lora_alpha=config.lora_alpha,  # type: ignore[arg-type]  # peft accepts any number
                    target_modules=adapter_config["target_modules"],
                    fan_in_fan_out=transposed,
                ),
                model,
                adapter_name=_NAME,
            )
        except ValueError as error:
            raise CannotTrain(f"learner.lora_targets: {error}") from None
    return adapter_config


def load_adapters(model: Any, folder: Path) -> None:
    """Load the adapters' values from a version's folder into the model."""
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in stored_adapters(folder).items():
            weights[name].copy_(value)


def stored_adapters(folder: Path) -> dict[str, Tensor]:
    """Return the adapters' values of a version's folder, by the names of the model's parameters."""
    values = {}
    for name, value in load_file(training_folder(folder) / ADAPTER / WEIGHTS).items():
        stem, _, last = name.removeprefix(_PREFIX).rpartition(".")
        values[f"{stem}.{_NAME}.{last}"] = value
    return values


def initial_adapters(model: Any, config: LearnerSettings) -> dict[str, Tensor]:
    """Return the values that `add_adapters` gives to adapters, for a model whose weights are on the meta device.

    Draws the same random numbers as peft, layer by layer: two linear layers, then A anew; B is 0.
    """
    values: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        for stem, module in model.named_modules():
            if not hasattr(module, "lora_A"):
                continue
            rank, size = module.lora_A[_NAME].weight.shape
            a = torch.nn.Linear(size, rank, bias=False).weight
            b = torch.nn.Linear(rank, module.lora_B[_NAME].weight.shape[0], bias=False).weight
            torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5))
            values |= {stem + _A: a.detach(), stem + _B: torch.zeros_like(b)}
    return values


def is_adapter(name: str) -> bool:
    """Return True if a parameter of this name belongs to an adapter."""
    return name.endswith((_A, _B))


def base_name(name: str) -> str:
    """Return the name that a parameter has in the model without adapters."""
    return name.replace(".base_layer.", ".")


def adapters_in(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the adapters' weights among a model's, by their names in peft's files."""
    return {
        _PREFIX + name.replace(f".{_NAME}.", "."): weight for name, weight in weights.items() if name.endswith((_A, _B))
    }


def change_of(name: str, adapters: Mapping[str, Tensor], config: Mapping[str, Any]) -> Callable[[], Tensor] | None:
    """Return the function that computes what adapters add to a weight; None: the weight has none.

    Args:
        name: name of the weight in a model without adapters.
        adapters: whole weights of the adapters.
        config: their configuration.
    """
    stem = name.removesuffix(".weight")
    if stem + _A not in adapters:
        return None
    b, a = adapters[stem + _B], adapters[stem + _A]

    def change() -> Tensor:
        value: Tensor = (b @ a) * (config["lora_alpha"] / config["r"])
        return value.T if config["fan_in_fan_out"] else value

    return change


def merged(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a model's weights with the adapters merged, under the names of a model without adapters."""
    result = {base_name(name): weight for name, weight in weights.items() if not is_adapter(name)}
    for name, weight in result.items():
        if change := change_of(name, weights, config):
            result[name] = weight + change()
    return result


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Disable the model's adapters inside the block."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    # Not peft's own switch: it would also freeze the adapters, in the middle of a step.
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def _configuration(config: LearnerSettings) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "target_modules": sorted(config.lora_targets) or "all-linear",
    }


def _shape(config: Mapping[str, Any]) -> list[Any]:
    return [config[name] for name in ("r", "lora_alpha", "target_modules")]
