"""Hold the policy in training: load, score, step and save its weights, on any device and number of ranks."""

import ctypes
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepstream.config import LearnerSettings
from stepstream.learner.data.learning_signal import needs_group
from stepstream.learner.data.requirements import requirements_of
from stepstream.learner.data.reward_shaping import discounting_of
from stepstream.learner.data.sequences import Limits, TokenSequence
from stepstream.learner.model import lora
from stepstream.learner.model.distributed import (
    TreeSum,
    current_ranks,
    from_shard,
    gather_full,
    is_exact,
    local_shard,
    set_gradient_sync,
    set_present_ranks,
)
from stepstream.learner.model.forward import Scores
from stepstream.learner.model.optimizer import Optimizer
from stepstream.learner.model.pretrained import stored_dtype
from stepstream.learner.model.published_form import PublishedForm
from stepstream.learner.model.row_files import Rows
from stepstream.learner.model.scored import load_scored, optimize_blocks
from stepstream.learner.model.sharded_load import read_weights
from stepstream.learner.model.snapshot import Snapshot, rows_of
from stepstream.learner.model.tensor_files import TensorFiles, optimizer_files
from stepstream.versions.layout import training_folder

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**30


def keep_memory() -> None:
    """Let this process keep the memory that it frees, up to its largest use so far.

    glibc returns large blocks to the kernel immediately, and the kernel clears them page by page when they are
    allocated again: an update of the tiny model then takes a seventh longer. Without glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _NEVER)
        mallopt(_TRIM_THRESHOLD, _NEVER)


_MASTER = "master"


class Policy:
    """A Hugging Face causal language model in float32 and its AdamW state, sharded over the ranks."""

    def __init__(self, folder: Path, config: LearnerSettings) -> None:
        """Continue from a folder in Hugging Face form, with its optimizer state and adapters if it has them.

        Raises:
            CannotTrain: the learner cannot train a model of this kind.
        """
        # Determinism costs time where the last bits are not promised.
        self._is_exact = is_exact(config)
        torch.use_deterministic_algorithms(self._is_exact)
        # No code here reads memory before writing it; filling it with NaN first costs 5 % of an update.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.set_num_threads(config.threads)
        keep_memory()
        self._most_norm = config.max_grad_norm
        self._discounting = discounting_of(config)
        self._takes_single, self._requirements = not needs_group(config), requirements_of(config)
        self._ranks = current_ranks()
        self._base = lora.base_folder(folder, config)
        self._dtype = stored_dtype(self._base)
        self._adapter: dict[str, Any] | None = None
        self._config = config
        state = optimizer_files(folder)
        self._scored = load_scored(
            self._base, config, self._add_adapters, lambda model, empty: self._fill(model, empty, folder, state)
        )
        self.model: Any = self._scored.model
        optimize_blocks(self.model, config)
        self._all = dict(self.model.named_parameters())
        self.weights = {name: weight for name, weight in self._all.items() if weight.requires_grad}
        """Trained weights by name."""
        self._optimizer = Optimizer(self.weights, config)
        self._optimizer.load(state)
        # One sum of gradients takes less memory than a tree of them.
        self._sum = TreeSum() if self._is_exact else None

    def limits(self, name: str) -> Limits:
        """Return the limits for records of model `name`."""
        config = self.model.config
        longest = config.max_position_embeddings
        return Limits(
            name,
            config.vocab_size,
            longest,
            discounting=self._discounting,
            takes_single=self._takes_single,
            requirements=self._requirements,
        )

    def batches(self, rows: Sequence[TokenSequence], most_tokens: int) -> list[list[int]]:
        """Return the indices of the rows of each forward pass, of at most `most_tokens` tokens (or one row)."""
        return self._scored.forward_pass.batches(rows, most_tokens)

    @property
    def state_size(self) -> int:
        """Size of its last hidden states."""
        return int(self.model.get_output_embeddings().in_features)

    def scores(self, rows: Sequence[TokenSequence], states: bool = False) -> Scores:
        """Log-probability of every trained token, with gradient, and entropies; with `states`, hidden states too."""
        scores: Scores = self._scored(rows, states)
        return scores

    def logprobs(self, rows: Sequence[TokenSequence]) -> Tensor:
        """Return the log-probability of every trained token, row after row, with gradient. Shape [trained tokens]."""
        return self.scores(rows).logprobs

    @torch.no_grad()
    def reference_logprobs(self, rows: Sequence[TokenSequence]) -> Tensor:
        """Return the log-probabilities under the model without its adapters. Shape [trained tokens].

        Raises:
            ValueError: the policy has no adapters: all weights are trained.
        """
        if self._adapter is None:
            raise ValueError("the policy has no adapters: set learner.lora_rank")
        with lora.without_adapters(self.model):
            return self.logprobs(rows)

    def learn(self, loss: Tensor, present: int = 1, is_last: bool = True) -> None:
        """Add the loss's gradient to the sum of gradients since the last step.

        Args:
            loss: one of the losses of the step; multiplied by 0 on a rank that has no batch in this round.
            present: number of batch groups that have a batch; of ranks where bits are promised.
            is_last: True in the last round of the step.
        """
        if self._is_exact:
            set_present_ranks(present)
        else:
            # A single rank sends nothing: a sum in each pass saves the memory of whole gradients.
            in_each_pass = self._config.gradient_sync == "pass" or self._ranks.size == 1
            set_gradient_sync(self._scored, is_last, in_each_pass)
        loss.backward()
        if self._sum is not None:
            self._sum.add([local_shard(_gradient(weight)) for weight in self.weights.values()], present)
            self._optimizer.zero_grad()

    @torch.no_grad()
    def step(self, rate: float) -> float:
        """Step with the sum of gradients since the last step, scaled down to the largest allowed norm.

        Returns:
            The norm before scaling; if it is not finite, the gradients were discarded.
        """
        weights = list(self.weights.values())
        if self._sum is not None:
            for weight, total in zip(weights, self._sum.total(), strict=True):
                weight.grad = from_shard(total, weight)
            # The norm of whole gradients: a sum of sums over shards would depend on their number.
            norms = [torch.linalg.vector_norm(gather_full(_gradient(weight))) for weight in weights]
            norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        else:
            norm = float(gather_full(torch.nn.utils.get_total_norm([_gradient(weight) for weight in weights])))
        if math.isfinite(norm):
            if norm > self._most_norm:
                torch._foreach_mul_(
                    [local_shard(_gradient(weight)) for weight in weights], self._most_norm / (norm + 1e-6)
                )
            self._optimizer.step(rate)
        self._optimizer.zero_grad()
        return norm

    def take_base_from(self, version: Path) -> None:
        """Link the base of later versions from one that this policy wrote: retention may remove those before it."""
        base = training_folder(version) / lora.BASE
        if base.is_dir():
            self._base = base

    @torch.no_grad()
    def snapshot(self) -> Snapshot:
        """Copy the state to host memory, each rank the rows that it holds; every rank must call this."""
        copies: dict[str, Rows] = {}
        optimizer: dict[str, Rows] = {}
        for name, weight in self.weights.items():
            if not lora.is_adapter(name):
                copies[name] = rows_of(weight, self._dtype)
            for key, value in self._optimizer.state_of(name).items():
                optimizer[f"{name}.{key}"] = rows_of(value, torch.float32)
            if self._dtype != torch.float32 and self._adapter is None:
                optimizer[f"{name}.{_MASTER}"] = replace(copies[name], dtype=torch.float32)
        stored = self.model.state_dict().keys()
        weights: dict[str, Rows] = {}
        for name, value in (*self._all.items(), *self.model.named_buffers()):
            if name in stored and not lora.is_adapter(name):
                weights[lora.base_name(name)] = copies.get(name) or rows_of(value, self._dtype, is_frozen=True)
        adapters = {
            name: gather_full(weight.detach()).to("cpu", copy=True)
            for name, weight in self.weights.items()
            if lora.is_adapter(name)
        }
        names = self._form.file_names(weights)
        if names is None:
            named, is_merged = self._converted(), True
        else:
            named, is_merged = {name: weights[own] for name, own in names.items()}, self._adapter is None
        return Snapshot(self._form, named, optimizer, is_merged, adapters, self._adapter, self._base)

    @cached_property
    def _form(self) -> PublishedForm:
        return PublishedForm(self.model, self._dtype)

    def _converted(self) -> dict[str, Rows]:
        """Return the weights of files that have other tensors than the model; rank 0 needs all weights for that."""
        whole: dict[str, Tensor] = {}
        for name, value in (*self._all.items(), *self.model.named_buffers()):
            full = gather_full(value.detach())
            if self._ranks.rank == 0:
                whole[name] = full.to("cpu", copy=True)
        if self._ranks.rank:
            return {}
        if self._adapter is not None:
            whole = lora.merged(whole, self._adapter)
        stored = self.model.state_dict().keys()
        known = {lora.base_name(name) for name in stored}
        weights = {name: value for name, value in whole.items() if name in known}
        return {name: rows_of(value, value.dtype) for name, value in self._form.converted(weights).items()}

    def _add_adapters(self, model: Any) -> None:
        if self._config.lora_rank:
            self._adapter = lora.add_adapters(model, self._config)

    @torch.no_grad()
    def _fill(self, model: Any, empty: bool, folder: Path, state: TensorFiles) -> None:
        """Load the values that continue training: adapters, and float32 weights if published ones are less precise."""
        continues = lora.continues(folder, self._config)
        if empty:
            adapters = None
            if self._adapter is not None:
                adapters = lora.stored_adapters(folder) if continues else lora.initial_adapters(model, self._config)
            read_weights(model, self._base, state, adapters)
            return
        if continues:
            lora.load_adapters(model, folder)
        for name, weight in model.named_parameters():
            if f"{name}.{_MASTER}" in state:
                weight.copy_(state.read(f"{name}.{_MASTER}", weight))


def _gradient(weight: Tensor) -> Tensor:
    """Return a weight's gradient; zeros if no token used the weight."""
    return torch.zeros_like(weight) if weight.grad is None else weight.grad
