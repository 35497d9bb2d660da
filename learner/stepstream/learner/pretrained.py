"""Hugging Face causal language models as files: what can be trained, loading it, and writing weights back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WEIGHTS = "model.safetensors"


class CannotTrain(Exception):
    """A model that the learner does not know how to train; the message says why."""


def load_model(folder: Path) -> Any:
    """The model of a folder in Hugging Face form, in float32 and without dropout.

    Raises:
        CannotTrain: it is no causal language model, or one whose log-probabilities would not be what its workers
            sample from.
    """
    from transformers import AutoModelForCausalLM, logging  # takes seconds to import

    logging.disable_progress_bar()
    capped = getattr(config_of(folder), "attn_logit_softcapping", None) is not None
    # Without dropout the log-probabilities of one version are a function of the tokens alone.
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        attn_implementation="eager" if capped else "sdpa",  # SDPA leaves caps out, and says nothing
        dtype=torch.float32,
        local_files_only=True,
    ).eval()
    if getattr(model, "_is_stateful", False):
        raise CannotTrain(f"{folder}: {type(model).__name__} keeps a state between tokens; only attention is supported")
    return model


def config_of(folder: Path) -> Any:
    """The configuration of a model that the learner can train.

    Raises:
        CannotTrain: it cannot.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CannotTrain(f"{folder}: its config.json cannot be used: {str(error).splitlines()[0]}") from None
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise CannotTrain(f"{folder}: '{config.model_type}' is not a causal language model that transformers knows")
    if getattr(config, "quantization_config", None) is not None:
        raise CannotTrain(f"{folder}: its weights are quantised; give the model in bfloat16 or float32")
    if not isinstance(getattr(config, "max_position_embeddings", None), int):
        raise CannotTrain(f"{folder}: its config.json has no `max_position_embeddings`, the longest sequence")
    return config


def stored_dtype(folder: Path) -> torch.dtype:
    """In which precision weights that come from a folder are written again: bfloat16 if they came so, else float32."""
    return torch.bfloat16 if config_of(folder).dtype == torch.bfloat16 else torch.float32


def save_model(model: Any, weights: Mapping[str, Tensor], dtype: torch.dtype, folder: Path) -> None:
    """Writes weights as one file, with the configuration, in the form that `model` was read in.

    The same values give the same bytes. `model` itself may be sharded or have adapters: only its kind matters.
    """
    with torch.device("meta"):
        form = type(model)._from_config(model.config, dtype=dtype)
    form._weight_conversions = getattr(model, "_weight_conversions", None)
    form.save_pretrained(
        folder,
        state_dict={
            name: weight.to(dtype) if weight.is_floating_point() else weight for name, weight in weights.items()
        },
        max_shard_size="1000GB",
    )
    (folder / "generation_config.json").unlink(missing_ok=True)  # no matter of the weights: the given one stays
