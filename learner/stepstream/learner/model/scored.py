"""Wrap a model so that its forward pass returns scores of training sequences, and shard it over the ranks."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stepstream.config import LearnerSettings
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.model.distributed import (
    current_ranks,
    ensure_group,
    free_gathered,
    is_exact,
    materialize,
    shard,
)
from stepstream.learner.model.forward import ForwardPass, Padded, Scores, forward_pass_for
from stepstream.learner.model.pretrained import load_model
from stepstream.learner.model.sequence_parallel import sequence_group
from stepstream.learner.model.sharded_load import empty_model


class ScoredModel(nn.Module):
    """A model whose forward pass returns scores: FSDP gathers its sharded weights around this call."""

    forward_pass: ForwardPass

    def __init__(self, model: Any, config: LearnerSettings) -> None:
        super().__init__()
        self.model = model
        self._config = config
        self.forward_pass = Padded()

    def choose_forward_pass(self) -> None:
        """Choose between packed and padded forward passes by a trial; every rank must call this.

        Raises:
            CannotTrain: the model transforms its logits in an unknown way.
        """
        self(None)

    def forward(self, rows: Sequence[TokenSequence] | None, states: bool = False) -> Scores | None:
        """Score the rows; None: choose the forward pass."""
        with self._precision():
            if rows is not None:
                return self.forward_pass(self.model, rows, states)
            with torch.no_grad():
                self.forward_pass = forward_pass_for(self.model, sequence_group(self.model, self._config))
            return None

    def _precision(self) -> AbstractContextManager[Any]:
        """Return autocast where bits are promised; elsewhere the gathered weights have the precision themselves."""
        if self._config.precision == "float32" or not is_exact(self._config):
            return nullcontext()
        return torch.autocast(self._config.device, torch.bfloat16)


def load_scored(
    folder: Path, config: LearnerSettings, change: Callable[[Any], None], fill: Callable[[Any, bool], None]
) -> ScoredModel:
    """Load a model in scored form on the configured device, sharded if there are several ranks or no exact bits.

    Args:
        folder: folder in Hugging Face form.
        config: settings.
        change: adds adapters to the model or freezes it, before it is sharded.
        fill: reads the values of the weights; its second argument is True if the model is sharded and empty.

    Raises:
        CannotTrain: the learner cannot train a model of this kind.
    """
    device = torch.device(config.device)
    sharded = current_ranks().size > 1 or not is_exact(config)
    model = empty_model(folder) if sharded else load_model(folder).to(device)
    change(model)
    scored = ScoredModel(model, config)
    if sharded:
        ensure_group(config.device)
        shard(scored, blocks_of(model), config)
        frozen = not any(weight.requires_grad for weight in model.parameters())
        materialize(scored, torch.device("cpu") if frozen and config.reference_offload else device)
    fill(model, sharded)
    scored.choose_forward_pass()
    if sharded:
        free_gathered(scored)  # the trial left the weights outside of blocks gathered
    return scored


def optimize_blocks(model: Any, config: LearnerSettings) -> None:
    """Recompute or compile the layers of a model in training, as the settings say."""
    for block in blocks_of(model):
        if config.activation_checkpointing:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if config.compile:
            block.compile(dynamic=True)


def blocks_of(model: Any) -> list[Any]:
    """Return the model's layers, in order, sharded or not: FSDP gives a sharded module a subclass of its class."""
    kinds = set(model._no_split_modules or ())
    return [module for module in model.modules() if kinds & {kind.__name__ for kind in type(module).__mro__}]
