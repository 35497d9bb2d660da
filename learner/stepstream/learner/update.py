"""One update: a few groups of attempts in, a few gradient steps on the policy, figures out.

On CPU the same weights, optimizer state, update number, groups and settings give the same bits again: that is what
`stepstream rebuild` stands on.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepstream.config.sections import Learner
from stepstream.learner.advantages import Rule, expand
from stepstream.learner.attempt import Attempt, Limits, Tokens
from stepstream.learner.batch import chosen_logprobs, microbatches
from stepstream.learner.credit import rule_of
from stepstream.learner.losses import LAGS, Batch, effective_share, kl_estimate, lag_shares, token_scales
from stepstream.learner.losses.configured import objective_of

_MOMENTS = ("exp_avg", "exp_avg_sq")
_LAG_NAMES = [f"staleness_share_{most}" for most in (*LAGS, "more")]
_FINAL_RATE = 0.1
"""Share of the learning rate that is left when it has decayed."""


class CannotTrain(Exception):
    """A model that the learner does not know how to train; the message says why."""


@dataclass(frozen=True, slots=True)
class _Row:
    tokens: Tokens
    advantages: npt.NDArray[np.float32]
    """Of each trained token. Shape [trained]."""


class Trainer:
    """The policy in training: a Hugging Face causal language model in float32 and its AdamW state."""

    def __init__(self, folder: Path, how: Learner) -> None:
        """Loads the model from a folder in Hugging Face form, with fresh optimizer state.

        Raises:
            CannotTrain: its logits are not the plain product of hidden states and output embeddings.
        """
        from transformers import AutoModelForCausalLM, logging  # takes seconds to import

        logging.disable_progress_bar()
        torch.use_deterministic_algorithms(True)
        # Nothing here reads memory before writing it; filling it with NaN first costs 5 % of an update.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.set_num_threads(how.threads)
        self._how, self._objective = how, objective_of(how)
        # Without dropout the log-probabilities of one version are a function of the tokens alone.
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="sdpa", dtype=torch.float32
        ).eval()
        for twist in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(self.model.config, twist, None) not in (None, 1.0):
                raise CannotTrain(f"{folder}: models with `{twist}` are not supported")
        self._names = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self._optimizer = torch.optim.AdamW(
            self._names.values(), lr=how.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )

    def limits(self, name: str) -> Limits:
        """What records must keep to, for the model called `name`."""
        config = self.model.config
        return Limits(name, config.vocab_size, config.max_position_embeddings)

    def update(self, number: int, groups: Sequence[Sequence[Attempt]], version: int) -> dict[str, float]:
        """Trains on the groups, each with at least two attempts whose rewards differ.

        Args:
            number: of this update since the root of the lineage, from 1: sets the rate and the minibatches.
            groups: attempts by group; their order matters for the last bits.
            version: version that the learner is training from: for the staleness in the figures, and the proximal
                policy where it is interpolated.

        Returns:
            Figures by name: `loss`, `clip_share`, `cap_share`, `effective_share`, `kl`, `staleness_mean`,
            `staleness_max`, `reward`, `tokens`, `sequences`, `grad_norm`, `learning_rate`, `steps_skipped`,
            `credited_share` (of the trained tokens, those whose advantage is not 0), `rejected_share` (those that a
            weight or mask left out), `staleness_share_N` and `staleness_share_more` (those of a staleness of at most
            N versions, and more than the N before).
        """
        how = self._how
        rows = _rows(groups, rule_of(how))
        credited = sum(int(np.count_nonzero(row.advantages)) for row in rows)
        order = list(range(len(rows)))
        random.Random(how.seed * 1_000_003 + number).shuffle(order)
        parts = [order[index :: how.minibatches] for index in range(min(how.minibatches, len(rows)))]
        # The first gradient step starts from the proximal policy itself: only later minibatches need it beforehand.
        proximal: dict[int, Tensor] = {}
        beforehand = parts[1:] if self._objective.proximal == "forward" else []
        with torch.no_grad():
            for indices in self._split(rows, [index for part in beforehand for index in part]):
                together = chosen_logprobs(self.model, [rows[index].tokens for index in indices])
                sizes = [rows[index].tokens.trained.size for index in indices]
                proximal |= dict(zip(indices, together.split(sizes), strict=True))
        rate = learning_rate(how, number)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        steps = [self._step(rows, part, proximal, version) for part in parts]
        figures = _figures(rows, steps) | _data_figures(rows, groups, version)
        return figures | {"learning_rate": rate, "credited_share": credited / max(1.0, figures["tokens"])}

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state as named tensors, to be saved beside the weights."""
        state: dict[str, Tensor] = {}
        for name, weight in self._names.items():
            for key, value in self._optimizer.state[weight].items():
                state[f"{name}.{key}"] = value.contiguous()
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continues from what `state` gave."""
        for name, weight in self._names.items():
            if f"{name}.step" in state:
                self._optimizer.state[weight] = {key: state[f"{name}.{key}"].clone() for key in ("step", *_MOMENTS)}

    def _split(self, rows: Sequence[_Row], part: Sequence[int]) -> Iterator[list[int]]:
        for local in microbatches([rows[index].tokens.ids.size for index in part], self._how.microbatch_tokens):
            yield [part[index] for index in local]

    def _step(self, rows: Sequence[_Row], part: Sequence[int], proximal: dict[int, Tensor], version: int) -> "_Step":
        how = self._how
        lengths = [rows[index].tokens.trained.size for index in part]
        scales = dict(zip(part, token_scales(lengths, rule_of(how).aggregation, how.loss_length), strict=True))
        step = _Step()
        self._optimizer.zero_grad()
        for indices in self._split(rows, part):
            chosen = [rows[index] for index in indices]
            current = chosen_logprobs(self.model, [row.tokens for row in chosen])
            before = torch.cat([proximal[i] for i in indices]) if indices[0] in proximal else current.detach()
            sizes = torch.tensor([row.tokens.trained.size for row in chosen])
            terms = self._objective.terms(_batch(chosen, current, before, version))
            scale = torch.tensor([scales[index] for index in indices]).repeat_interleave(sizes)
            loss = -(scale * terms.objective).sum()
            loss.backward()
            step.loss += loss.item()
            step.weights.append(terms.weight)
            step.clipped += int(terms.clipped.sum())
            step.capped += int(terms.capped.sum())
            step.rejected += int(terms.rejected.sum())
        step.grad_norm = float(torch.nn.utils.clip_grad_norm_(self._names.values(), how.max_grad_norm))
        if np.isfinite(step.grad_norm):
            self._optimizer.step()
        else:
            step.skipped = 1
        return step


@dataclass(slots=True)
class _Step:
    loss: float = 0.0
    clipped: int = 0
    capped: int = 0
    rejected: int = 0
    grad_norm: float = 0.0
    skipped: int = 0
    weights: list[Tensor] = field(default_factory=list)


def learning_rate(how: Learner, number: int) -> float:
    """Rate of update `number` (from 1): rises linearly over the warm-up, then falls linearly to a tenth."""
    if number < how.warmup_updates:
        return how.learning_rate * number / how.warmup_updates
    if not how.decay_updates:
        return how.learning_rate
    done = min(1.0, (number - how.warmup_updates) / how.decay_updates)
    return how.learning_rate * (1 - (1 - _FINAL_RATE) * done)


def _rows(groups: Sequence[Sequence[Attempt]], rule: Rule) -> list[_Row]:
    credits = rule([[attempt.credit for attempt in group] for group in groups]).groups
    return [
        _Row(tokens, expand(credit, tokens.steps).astype(np.float32))
        for group, group_credits in zip(groups, credits, strict=True)
        for attempt, credit in zip(group, group_credits, strict=True)
        for tokens in attempt.sequences
    ]


def _batch(chosen: Sequence[_Row], current: Tensor, proximal: Tensor, version: int) -> Batch:
    sizes = torch.tensor([row.tokens.trained.size for row in chosen])
    # A step's tokens in two training sequences are two segments: what is shared is shared within one forward pass.
    steps = np.unique(
        np.concatenate(
            [np.stack((np.full_like(row.tokens.steps, n), row.tokens.steps)) for n, row in enumerate(chosen)], 1
        ),
        axis=1,
        return_inverse=True,
    )[1]
    return Batch(
        current=current,
        proximal=proximal,
        behaviour=torch.from_numpy(np.concatenate([row.tokens.logprobs for row in chosen])),
        advantage=torch.from_numpy(np.concatenate([row.advantages for row in chosen])),
        sequences=torch.arange(len(chosen)).repeat_interleave(sizes),
        steps=torch.from_numpy(steps.reshape(-1)),
        versions=torch.from_numpy(np.concatenate([row.tokens.versions for row in chosen])),
        version=version,
    )


def _figures(rows: Sequence[_Row], steps: Sequence[_Step]) -> dict[str, float]:
    weights = torch.cat([weight for step in steps for weight in step.weights])
    tokens = max(1, weights.numel())
    return {
        "loss": sum(step.loss for step in steps) / len(steps),
        "clip_share": sum(step.clipped for step in steps) / tokens,
        "cap_share": sum(step.capped for step in steps) / tokens,
        "rejected_share": sum(step.rejected for step in steps) / tokens,
        "effective_share": effective_share(weights),
        "kl": kl_estimate(weights),
        "tokens": float(weights.numel()),
        "sequences": float(len(rows)),
        "grad_norm": max(step.grad_norm for step in steps),
        "steps_skipped": float(sum(step.skipped for step in steps)),
    }


def _data_figures(rows: Sequence[_Row], groups: Sequence[Sequence[Attempt]], version: int) -> dict[str, float]:
    versions = np.concatenate([row.tokens.versions for row in rows])
    rewards = [attempt.reward for group in groups for attempt in group]
    return {
        "staleness_mean": float(version - versions.mean()),
        "staleness_max": float(version - versions.min()),
        **dict(zip(_LAG_NAMES, lag_shares(torch.from_numpy(version - versions)), strict=True)),
        "reward": sum(rewards) / len(rewards),
    }
