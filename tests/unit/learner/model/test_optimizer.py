"""Test the policy's optimizer: decay of matrices alone, steps in host memory, state by weight, missing packages."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stepstream.config import LearnerSettings
from stepstream.learner.model.memory_plan import _BLOCK_OF_8BIT
from stepstream.learner.model.optimizer import MOMENTS, Optimizer
from stepstream.learner.model.pretrained import CannotTrain
from stepstream.learner.model.tensor_files import WholeTensors


def config(**fields: Any) -> LearnerSettings:
    return LearnerSettings.model_validate({"preset": "tiny", **fields})


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"matrix": torch.randn(3, 5, generator=generator), "norm": torch.randn(5, generator=generator)}


def give_gradients(own: dict[str, torch.Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in own.values():
        weight.grad = torch.randn(weight.shape, generator=generator)


def after(steps: int, **fields: Any) -> tuple[dict[str, torch.Tensor], Optimizer]:
    own = weights()
    optimizer = Optimizer(own, config(**fields))
    for seed in range(steps):
        give_gradients(own, seed)
        optimizer.step(1e-2)
        optimizer.zero_grad()
    return own, optimizer


def test_only_matrices_decay() -> None:
    own = weights()
    optimizer = Optimizer(own, config(weight_decay=0.5))
    for weight in own.values():
        weight.grad = torch.zeros_like(weight)
    optimizer.step(0.1)
    torch.testing.assert_close(own["matrix"], weights()["matrix"] * 0.95)
    assert torch.equal(own["norm"], weights()["norm"])


def test_betas_and_epsilon_are_adamw_s() -> None:
    own, expected = weights(), weights()
    settings = {"adam_beta1": 0.7, "adam_beta2": 0.8, "adam_epsilon": 0.1, "weight_decay": 0.0}
    optimizer = Optimizer(own, config(**settings))
    theirs = torch.optim.AdamW(expected.values(), lr=1e-2, betas=(0.7, 0.8), eps=0.1, weight_decay=0.0)
    for seed in range(3):
        give_gradients(own, seed)
        give_gradients(expected, seed)
        optimizer.step(1e-2)
        theirs.step()
    torch.testing.assert_close(own, expected)


def test_steps_in_host_memory_give_the_same_bits() -> None:
    own, optimizer = after(3)
    offloaded, other = after(3, optimizer_offload=True)
    assert all(torch.equal(own[name], offloaded[name]) for name in own)
    for name in own:
        states = optimizer.state_of(name), other.state_of(name)
        assert set(states[0]) == set(states[1]) == {"step", *MOMENTS}
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("fields", [{}, {"optimizer_offload": True}])
def test_an_optimizer_continues_from_the_state_of_another(fields: dict[str, Any]) -> None:
    expected, _ = after(4)
    own, before = after(3, **fields)
    optimizer = Optimizer(own, config(**fields))
    state = {f"{name}.{key}": value for name in own for key, value in before.state_of(name).items()}
    optimizer.load(WholeTensors(state))
    give_gradients(own, 3)
    optimizer.step(1e-2)
    assert all(torch.equal(own[name], expected[name]) for name in own)


class TensorRates(torch.optim.Optimizer):
    """AdamW with the contract of torchao's: its rate stays a tensor, and moments are created by the first step."""

    def __init__(self, groups: Any, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        for group in self.param_groups:
            group["lr"] = torch.tensor(group["lr"])
        self._rates = [group["lr"] for group in self.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group, rate in zip(self.param_groups, self._rates, strict=True):
            assert group["lr"] is rate, "lr was changed to a non-Tensor object"
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state |= {"step": torch.tensor(0.0)} | {key: torch.zeros_like(weight) for key in MOMENTS}
                single = torch.optim.AdamW(
                    [weight], lr=float(rate), betas=group["betas"], eps=group["eps"], weight_decay=group["weight_decay"]
                )
                single.state[weight] = state
                single.step()


def test_the_8_bit_optimizer_steps_with_its_own_rate_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check our side of the contract, where torchao is not installed."""
    monkeypatch.setitem(sys.modules, "torchao.optim", SimpleNamespace(AdamW8bit=TensorRates))
    fields = {"optimizer": "adamw_8bit", "device": "cuda", "weight_decay": 0.1}
    expected, _ = after(4, weight_decay=0.1)
    own, before = after(3, **fields)
    state = {f"{name}.{key}": value.clone() for name in own for key, value in before.state_of(name).items()}
    continued = Optimizer(own, config(**fields))
    continued.load(WholeTensors(state))
    give_gradients(own, 3)
    continued.step(1e-2)
    torch.testing.assert_close(own, expected)


@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_torchao_s_moments_take_the_planned_bytes_and_continue() -> None:
    """Needs a C++ compiler too: torchao compiles its step, within a minute."""
    pytest.importorskip("torchao", reason="needs torchao: install it (without it: our side of its contract)")
    generator = torch.Generator().manual_seed(0)
    own = {"matrix": torch.randn(512, 1024, generator=generator)}
    expected = {"matrix": own["matrix"].clone()}
    fields = {"optimizer": "adamw_8bit", "device": "cuda"}
    quantized, exact = Optimizer(own, config(**fields)), Optimizer(expected, config())
    for seed in range(5):
        for weights_of, optimizer in ((own, quantized), (expected, exact)):
            give_gradients(weights_of, seed)
            optimizer.step(1e-2)
    assert (own["matrix"] - expected["matrix"]).abs().max() < 5e-3  # a tenth of five steps
    moments = quantized._adamw.state[quantized._stepped["matrix"]]
    count = own["matrix"].numel()
    for name in MOMENTS:
        moment = moments[name]
        held = sum(part.numel() * part.element_size() for part in (moment.codes, moment.scale))
        assert held == count + 4 * count // _BLOCK_OF_8BIT
    continued_weights = {"matrix": own["matrix"].clone()}
    continued = Optimizer(continued_weights, config(**fields))
    state = {f"matrix.{key}": value.clone() for key, value in quantized.state_of("matrix").items()}
    continued.load(WholeTensors(state))
    for weights_of, optimizer in ((own, quantized), (continued_weights, continued)):
        give_gradients(weights_of, 9)
        optimizer.step(1e-2)
    assert (own["matrix"] - continued_weights["matrix"]).abs().max() < 5e-4


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(CannotTrain, match=r"adamw_8bit needs torchao .*install it, or set learner.optimizer=adamw"):
        Optimizer(weights(), config(optimizer="adamw_8bit", device="cuda"))
