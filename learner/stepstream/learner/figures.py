"""What an update tells about itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stepstream.learner.attempt import Attempt
from stepstream.learner.losses import LAGS, Terms, effective_share, kl_estimate, lag_shares
from stepstream.learner.rows import Row

_LAG_NAMES = [f"staleness_share_{most}" for most in (*LAGS, "more")]


@dataclass(slots=True)
class Step:
    """One gradient step."""

    loss: float = 0.0
    clipped: int = 0
    capped: int = 0
    rejected: int = 0
    grad_norm: float = 0.0
    skipped: int = 0
    weights: list[Tensor] = field(default_factory=list)
    """Importance weights of the trained tokens, a tensor for each forward pass."""

    def count(self, loss: float, terms: Terms) -> None:
        """Adds the tokens of one forward pass and their part of the loss."""
        self.loss += loss
        self.weights.append(terms.weight)
        self.clipped += int(terms.clipped.sum())
        self.capped += int(terms.capped.sum())
        self.rejected += int(terms.rejected.sum())


def step_figures(steps: Sequence[Step]) -> dict[str, float]:
    """How the gradient steps of one update went."""
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
        "grad_norm": max(step.grad_norm for step in steps),
        "steps_skipped": float(sum(step.skipped for step in steps)),
    }


def data_figures(rows: Sequence[Row], groups: Sequence[Sequence[Attempt]], version: int) -> dict[str, float]:
    """What was trained on, by a learner that trains from `version`."""
    versions = np.concatenate([row.tokens.versions for row in rows])
    rewards = [attempt.reward for group in groups for attempt in group]
    credited = sum(int(np.count_nonzero(row.advantages)) for row in rows)
    return {
        "sequences": float(len(rows)),
        "credited_share": credited / max(1, versions.size),
        "staleness_mean": float(version - versions.mean()),
        "staleness_max": float(version - versions.min()),
        **dict(zip(_LAG_NAMES, lag_shares(torch.from_numpy(version - versions)), strict=True)),
        "reward": sum(rewards) / len(rewards),
    }
