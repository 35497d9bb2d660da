"""Step the policy's weights with AdamW: on their device, in host memory, or with moments in 8 bits.

Every kind stores the same state: float32 moments by weight, so that a version may be continued with another kind.
"""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from stepstream.config import LearnerSettings
from stepstream.learner.model.distributed import from_shard, local_shard
from stepstream.learner.model.pretrained import CannotTrain
from stepstream.learner.model.tensor_files import StoredTensors

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW over named weights, which may be sharded."""

    def __init__(self, weights: Mapping[str, Tensor], config: LearnerSettings) -> None:
        """Begin without state.

        Raises:
            CannotTrain: `learner.optimizer` needs a package that is not installed.
        """
        self._weights = dict(weights)
        self._is_offloaded = config.optimizer_offload
        self._stepped = self._host_copies() if self._is_offloaded else self._weights
        self._adamw = _adamw(self._stepped.values(), config)

    def zero_grad(self) -> None:
        """Remove the gradients of all weights."""
        for weight in self._weights.values():
            weight.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Step every weight that has a gradient with step size `rate`."""
        self._set_rate(rate)
        if not self._is_offloaded:
            self._adamw.step()
            return
        for name, weight in self._weights.items():
            self._stepped[name].grad = None if weight.grad is None else local_shard(weight.grad).cpu()
        self._adamw.step()
        for name, weight in self._weights.items():
            local_shard(weight).copy_(self._stepped[name], non_blocking=True)
            self._stepped[name].grad = None

    @torch.no_grad()
    def state_of(self, name: str) -> dict[str, Tensor]:
        """Return the state of a weight, on its device and sharded like it, in float32; empty before its first step."""
        weight = self._weights[name]
        state: dict[str, Tensor] = self._adamw.state.get(self._stepped[name], {})
        found = {}
        for key, value in state.items():
            if key in MOMENTS:
                value = from_shard(_plain(local_shard(value)).to(weight.device), weight)
            found[key] = value
        return found

    @torch.no_grad()
    def load(self, state: StoredTensors) -> None:
        """Continue from the state of an earlier optimizer: `NAME.step`, `NAME.exp_avg` and `NAME.exp_avg_sq`."""
        if self._adamw_is_quantized and any(f"{name}.step" in state for name in self._weights):
            self._create_state()
        for name, stepped in self._stepped.items():
            if f"{name}.step" not in state:
                continue
            weight = self._weights[name]
            step = state.read(f"{name}.step", torch.empty((), device=stepped.device)).clone()
            shards = {key: state.read(f"{name}.{key}", weight).to(stepped.device).clone() for key in MOMENTS}
            moments = shards if self._is_offloaded else {key: from_shard(shards[key], weight) for key in MOMENTS}
            if self._adamw_is_quantized:
                own = self._adamw.state[stepped]
                own["step"].copy_(step)
                for key, value in moments.items():
                    local_shard(own[key]).copy_(local_shard(value))
            else:
                self._adamw.state[stepped] = {"step": step, **moments}

    @property
    def _adamw_is_quantized(self) -> bool:
        return not isinstance(self._adamw, torch.optim.AdamW)

    def _create_state(self) -> None:
        """Let the optimizer create its state by a step of size 0, which changes no weight."""
        for weight in self._stepped.values():
            weight.grad = torch.zeros_like(weight)
        self._set_rate(0.0)
        self._adamw.step()
        self.zero_grad()

    def _set_rate(self, rate: float) -> None:
        for group in self._adamw.param_groups:
            if isinstance(group["lr"], Tensor):  # torchao rejects a rate that is not its own tensor
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _host_copies(self) -> dict[str, Tensor]:
        return {name: local_shard(weight).detach().cpu().clone() for name, weight in self._weights.items()}


def _adamw(weights: Iterable[Tensor], config: LearnerSettings) -> Any:
    """Return the configured optimizer; only matrices decay."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for weight in weights:
        (matrices if weight.dim() > 1 else others).append(weight)
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas, epsilon = (config.adam_beta1, config.adam_beta2), config.adam_epsilon
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=epsilon, fused=True)
    try:
        quantized = importlib.import_module("torchao.optim")
    except ImportError as error:
        raise CannotTrain(
            f"learner.optimizer=adamw_8bit needs torchao ({error}): install it, or set learner.optimizer=adamw"
        ) from None
    return quantized.AdamW8bit(groups, lr=config.learning_rate, betas=betas, eps=epsilon)


def _plain(value: Tensor) -> Tensor:
    """Return a tensor's values in float32; an 8-bit tensor of torchao dequantizes itself."""
    return value.dequantize() if type(value) is not Tensor and hasattr(value, "dequantize") else value
