"""A critic: what a state is worth, read off the policy's last hidden states by one linear layer.

    V = w·x,  x = h/(√d·‖h‖)

h is the hidden state of size d from which the next token is predicted. The policy is not trained through it: the layer
learns what the policy's states tell, and the policy's gradients are the same with and without a critic. Since
Σ|x_i| ≤ 1, a step that moves each weight by a rate moves no value by more, whatever the model's width. Hidden states
have so much in common that w needs no constant beside it. The layer is whole on every rank; all step it alike.
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

CRITIC = "critic.safetensors"
"""Its file in a version's folder: weights and optimizer state."""
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True)
class Surprise:
    """By how much the values of one forward pass were off."""

    gradient: Tensor
    """Of the sum of losses, by w. Shape [size], on the CPU."""
    loss: float
    """Sum over its targets."""
    targets: int


class Critic:
    """The value head and its AdamW state."""

    def __init__(self, size: int, config: LearnerSettings, folder: Path) -> None:
        """Continues from a version's folder; says 0 everywhere where that has no critic, or one of another width.

        Args:
            size: of the policy's hidden states.
            how: settings.
            folder: of the version to train from.
        """
        self._clip = config.critic_clip
        self._weight = torch.zeros(size)
        self._optimizer = torch.optim.AdamW([self._weight], lr=config.critic_rate, betas=(0.9, 0.95), weight_decay=0.0)
        file = folder / CRITIC
        state = load_file(file) if file.exists() else {}
        if state and state["weight"].numel() == size:
            self._weight.copy_(state["weight"])
            if "step" in state:
                self._optimizer.state[self._weight] = {key: state[key].clone() for key in _MOMENTS}

    @torch.no_grad()
    def values(self, states: Tensor) -> Tensor:
        """V of each state.

        Args:
            states: hidden states. Shape [states, size].

        Returns:
            Shape [states], float32, on the CPU.
        """
        x = _scaled(states)
        return (x @ self._weight.to(x.device)).cpu()

    @torch.no_grad()
    def surprise(self, states: Tensor, targets: Tensor, before: Tensor) -> Surprise:
        """How far the values are from where they should be, and in which direction that is.

        L = ½·(V - R)² for each target R; with a bound ε (`learner.critic_clip`) ½·max((V - R)², (V' - R)²), V' =
        V_before + clip(V - V_before, -ε, ε), as PPO has it: past the bound there is no gradient towards R.

        Args:
            states: hidden states. Shape [states, size].
            targets: R of each; NaN: not asked. Shape [states].
            before: V of each before the update. Shape [states].
        """
        asked = ~targets.isnan()
        x = _scaled(states[asked.to(states.device)])
        value, target = x @ self._weight.to(x.device), targets[asked].to(x.device)
        error = value - target
        loss = error.square()
        if self._clip:
            old = before[asked].to(x.device)
            bounded = (old + (value - old).clamp(-self._clip, self._clip) - target).square()
            error = torch.where(bounded > loss, 0.0, error)
            loss = torch.maximum(loss, bounded)
        return Surprise((x.T @ error).cpu(), 0.5 * float(loss.sum()), int(asked.sum()))

    @torch.no_grad()
    def learn(self, surprises: Sequence[Surprise]) -> float:
        """One step towards the targets of some forward passes.

        Returns:
            Their mean loss before it; 0 where nothing was asked. A gradient that is not finite is thrown away.
        """
        targets = sum(each.targets for each in surprises)
        if not targets:
            return 0.0
        gradient = torch.stack([each.gradient for each in surprises]).sum(0) / targets
        if gradient.isfinite().all():
            self._weight.grad = gradient
            self._optimizer.step()
        return sum(each.loss for each in surprises) / targets

    def state(self) -> dict[str, Tensor]:
        """What it holds, to be written."""
        held = {"weight": self._weight, **self._optimizer.state[self._weight]}
        return {name: value.clone() for name, value in held.items()}


def _scaled(states: Tensor) -> Tensor:
    return normalize(states.float(), dim=1) / math.sqrt(states.shape[1])
