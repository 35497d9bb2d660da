"""Score and train the same rows in ranks that share the tokens of each forward pass, or alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packed_models import rows
from sharded_policies import config_of

from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.model.distributed import gather_full
from stepstream.learner.model.forward import Packed
from stepstream.learner.model.policy import Policy


def mixed_rows() -> list[TokenSequence]:
    """Return ragged sequences of two temperatures, a long one of them with a single prediction."""
    found = []
    for number, row in enumerate(rows()):
        at = row.trained[:1] if number == 2 else row.trained
        heat = np.full(at.size, 0.7, np.float32) if number % 2 else None
        found.append(replace(row, trained=at, temperatures=heat))
    return found


def learned(folders: list[Path], **fields: Any) -> list[dict[str, Any]]:
    """Return for each model the scores of the rows, the gradients of a loss of them, and the weights after a step."""
    return [_learned(folder, **fields) for folder in folders]


def _learned(folder: Path, **fields: Any) -> dict[str, Any]:
    # With so large an ε a step is a smooth function of the gradient, also of one that is 0 but for rounding.
    policy = Policy(folder, config_of(reproducible=False, max_grad_norm=1e9, adam_epsilon=1e-2, **fields))
    assert isinstance(policy._scored.forward_pass, Packed)
    scores = policy.scores(mixed_rows(), states=True)
    assert scores.states is not None
    policy.learn((torch.linspace(-1, 1, scores.logprobs.numel()) * scores.logprobs).sum())
    gradients = {name: gather_full(weight.grad).numpy() for name, weight in policy.weights.items()}
    policy.step(1e-3)
    return {
        "scores": {"logprobs": scores.logprobs.detach().numpy(), "entropy": scores.entropy.numpy()},
        "states": {"states": scores.states.float().numpy()},
        "gradients": gradients,
        "weights": {name: gather_full(weight.detach()).numpy() for name, weight in policy.weights.items()},
    }
