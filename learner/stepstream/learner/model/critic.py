"""Estimate the value of a state with one linear layer on the policy's last hidden state.

    V = w·x,  x = h/(√d·‖h‖)

h is the hidden state of size d from which the next token is predicted. No gradient flows to the policy, so its
gradients are the same with and without a critic. Since Σ|x_i| ≤ 1, a step that moves each weight by a rate moves no
value by more, for any width of the model. Hidden states have a large common component, so w needs no bias. Every rank
holds the whole layer and makes the same steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import normalize

from stepstream.config import LearnerSettings
from stepstream.versions.layout import training_folder

CRITIC = "critic.safetensors"
"""File in a version's folder with the weights and the optimizer state."""
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True)
class CriticGradient:
    """Loss and gradient of the values of one forward pass."""

    gradient: Tensor
    """Gradient of the sum of losses by w. Shape [size], on the CPU."""
    loss: float
    """Sum over the targets."""
    targets: int
    """Number of targets."""


class Critic:
    """The value head and its AdamW state."""

    def __init__(self, size: int, config: LearnerSettings, folder: Path) -> None:
        """Continue from a version's folder; without a critic of this width there, start with V = 0.

        Args:
            size: size of the policy's hidden states.
            config: settings.
            folder: folder of the version to train from.
        """
        self._clip = config.critic_clip
        self._weight = torch.zeros(size)
        self._optimizer = torch.optim.AdamW([self._weight], lr=config.critic_rate, betas=(0.9, 0.95), weight_decay=0.0)
        file = training_folder(folder) / CRITIC
        state = load_file(file) if file.exists() else {}
        if state and state["weight"].numel() == size:
            self._weight.copy_(state["weight"])
            if "step" in state:
                self._optimizer.state[self._weight] = {key: state[key].clone() for key in _MOMENTS}

    @torch.no_grad()
    def values(self, states: Tensor) -> Tensor:
        """Return V of each state.

        Args:
            states: hidden states. Shape [states, size].

        Returns:
            Shape [states], float32, on the CPU.
        """
        x = _scaled(states)
        return (x @ self._weight.to(x.device)).cpu()

    @torch.no_grad()
    def gradient_of(self, states: Tensor, targets: Tensor, before: Tensor) -> CriticGradient:
        """Return the loss of the values and its gradient.

        L = ½·(V - R)² for each target R; with a bound ε (`learner.critic_clip`) ½·max((V - R)², (V' - R)²), V' =
        V_before + clip(V - V_before, -ε, ε), as in PPO: past the bound there is no gradient towards R.

        Args:
            states: hidden states. Shape [states, size].
            targets: R of each state; NaN: no target. Shape [states].
            before: V of each state before the update. Shape [states].
        """
        has_target = ~targets.isnan()
        x = _scaled(states[has_target.to(states.device)])
        value, target = x @ self._weight.to(x.device), targets[has_target].to(x.device)
        error = value - target
        loss = error.square()
        if self._clip:
            old = before[has_target].to(x.device)
            bounded = (old + (value - old).clamp(-self._clip, self._clip) - target).square()
            error = torch.where(bounded > loss, 0.0, error)
            loss = torch.maximum(loss, bounded)
        return CriticGradient((x.T @ error).cpu(), 0.5 * float(loss.sum()), int(has_target.sum()))

    @torch.no_grad()
    def learn(self, gradients: Sequence[CriticGradient]) -> float:
        """Make one step towards the targets of some forward passes; a gradient that is not finite is discarded.

        Returns:
            Their mean loss before the step; 0 without targets.
        """
        targets = sum(each.targets for each in gradients)
        if not targets:
            return 0.0
        gradient = torch.stack([each.gradient for each in gradients]).sum(0) / targets
        if gradient.isfinite().all():
            self._weight.grad = gradient
            self._optimizer.step()
        return sum(each.loss for each in gradients) / targets

    def state(self) -> dict[str, Tensor]:
        """Return its weights and optimizer state, for a checkpoint."""
        state = {"weight": self._weight, **self._optimizer.state[self._weight]}
        return {name: value.clone() for name, value in state.items()}


def _scaled(states: Tensor) -> Tensor:
    return normalize(states.float(), dim=1) / math.sqrt(states.shape[1])
