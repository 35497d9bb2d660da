"""Read the sizes of a model from its configuration, without its weights."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from stepstream.config import LearnerSettings
from stepstream.learner.model import lora
from stepstream.learner.model.memory_plan import ModelShape
from stepstream.learner.model.scored import blocks_of
from stepstream.learner.model.sharded_load import empty_model


def shape_of(folder: Path, config: LearnerSettings) -> ModelShape:
    """Return the sizes of the model of a folder, with adapters if the settings ask for them.

    Raises:
        CannotTrain: the learner cannot train it.
    """
    model = empty_model(folder)
    if config.lora_rank:
        lora.add_adapters(model, config)
    return shape_of_model(model)


def shape_of_model(model: Any) -> ModelShape:
    """Return the sizes of a model, whose weights may be on the meta device."""
    config = model.config.get_text_config()
    blocks = [list(block.parameters()) for block in blocks_of(model)]
    every = list(model.parameters())
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    weights, trained = _count(every), _count_trained(every)
    return ModelShape(
        weights=weights,
        trained=trained,
        block=max(map(_count, blocks), default=0),
        trained_in_block=max(map(_count_trained, blocks), default=0),
        outside=weights - sum(map(_count, blocks)),
        trained_outside=trained - sum(map(_count_trained, blocks)),
        layers=len(blocks),
        hidden=config.hidden_size,
        intermediate=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        queries=config.num_attention_heads * head,
        keys=keys * head,
        key_heads=keys,
        vocabulary=config.vocab_size,
    )


def _count(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() for weight in weights)


def _count_trained(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() for weight in weights if weight.requires_grad)
