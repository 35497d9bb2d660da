"""Build a model whose weights are sharded from the beginning: no rank ever holds all of them.

1. Build the model with weights on the meta device, and buffers (rotary frequencies) in memory.
2. Add adapters and shard (`distributed.shard`): still without memory.
3. Allocate this rank's rows (`distributed.materialize`) and tie shared weights.
4. Read this rank's rows from the files (`read_weights`).
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepstream.learner.model import lora
from stepstream.learner.model.distributed import local_shard
from stepstream.learner.model.pretrained import attention_of, check_stateless, config_of, load_model
from stepstream.learner.model.tensor_files import StoredTensors, WholeTensors, weight_files

log = logging.getLogger(__name__)

_NOTHING = WholeTensors({})


def empty_model(folder: Path) -> Any:
    """Build the model of a folder in Hugging Face form in float32, with its weights on the meta device.

    Raises:
        CannotTrain: the learner cannot train it.
    """
    from accelerate import init_empty_weights  # these take seconds to import
    from transformers import AutoModelForCausalLM

    config = config_of(folder)
    with init_empty_weights(include_buffers=False):
        model: Any = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention_of(config), dtype=torch.float32
        ).eval()
    check_stateless(model, folder)
    model.tie_weights()
    return model


@torch.no_grad()
def read_weights(
    model: Any, folder: Path, masters: StoredTensors = _NOTHING, adapters: Mapping[str, Tensor] | None = None
) -> None:
    """Read this rank's rows of a model's allocated weights.

    Args:
        model: model, sharded or not, possibly with adapters.
        folder: folder of its weights in Hugging Face form.
        masters: float32 weights as `NAME.master`, which replace those of the folder.
        adapters: values of the adapters by parameter name; needed if the model has adapters.
    """
    model.tie_weights()
    weights = dict(model.named_parameters())
    names = {name: lora.base_name(name) for name in weights if not lora.is_adapter(name)}
    stored: StoredTensors = weight_files(folder)
    if missing := [given for given in names.values() if given not in stored]:
        # transformers converts the names or forms of some models when it loads them.
        log.warning("%s: loaded whole on each rank: its files have no tensor '%s'", folder, missing[0])
        stored = WholeTensors(load_model(folder).state_dict())
    for name, given in names.items():
        master = f"{name}.master"
        value = masters.read(master, weights[name]) if master in masters else stored.read(given, weights[name])
        local_shard(weights[name]).copy_(value)
    for name, buffer in model.named_buffers():
        if name in stored:
            buffer.copy_(stored.read(name, buffer))
    given_adapters = WholeTensors(adapters or {})
    for name in weights.keys() - names.keys():
        local_shard(weights[name]).copy_(given_adapters.read(name, weights[name]))
