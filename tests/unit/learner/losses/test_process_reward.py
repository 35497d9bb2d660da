"""Check the targets and losses of process reward models, by hand and by their laws."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stepstream.learner.losses.process_reward import (
    bootstrapped_targets,
    progress_loss,
    promise_and_progress,
    promise_loss,
    rollout_targets,
    value_loss,
)

VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_pair_s_target_is_the_mean_outcome_discounted_by_the_remaining_steps() -> None:
    visits = [["sa", "tb"], ["sa", "uc", "vd"], ["xe"]]
    targets = rollout_targets(visits, [1.0, 0.5, 0.0], 0.9)
    wanted = {"sa": (0.9 + 0.81 * 0.5) / 2, "tb": 1.0, "uc": 0.45, "vd": 0.5, "xe": 0.0}
    assert targets == pytest.approx(wanted)


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6), st.floats(0, 1))
def test_targets_stay_between_the_outcomes(visits: list[list[int]], gamma: float) -> None:
    outcomes = [float(index % 2) for index in range(len(visits))]
    assert all(0 <= value <= 1 for value in rollout_targets(visits, outcomes, gamma).values())


def test_the_value_loss_is_cross_entropy() -> None:
    loss = value_loss(tensor([0.0, math.log(3)]), tensor([1.0, 0.5]))
    assert float(loss) == pytest.approx((math.log(2) - 0.5 * (math.log(0.75) + math.log(0.25))) / 2)


def test_targets_of_the_vector() -> None:
    """CREDIT's vector for GAE, with λ = 0.95 and γ = 1."""
    targets, advantages = bootstrapped_targets(tensor([0.5, 0.6, 0.4]), tensor([0.0, 0.0, 1.0]), 1.0, 0.95)
    assert advantages.tolist() == pytest.approx([0.4515, 0.37, 0.6])
    assert targets.tolist() == pytest.approx([0.9515, 0.97, 1.0])


@given(VALUES, st.floats(0, 1))
def test_with_a_full_trace_the_target_is_the_discounted_return(values: list[float], gamma: float) -> None:
    rewards = [0.0] * (len(values) - 1) + [1.0]
    targets, _ = bootstrapped_targets(tensor(values), tensor(rewards), gamma, 1.0)
    wanted = [gamma ** (len(values) - 1 - t) for t in range(len(values))]
    assert targets.tolist() == pytest.approx(wanted, abs=1e-9)


@given(VALUES)
def test_targets_carry_no_gradient_and_losses_do(values: list[float]) -> None:
    predictions = tensor(values).requires_grad_()
    rewards = torch.zeros_like(predictions)
    targets, advantages = bootstrapped_targets(predictions, rewards, 0.9, 0.8)
    assert not targets.requires_grad
    assert not advantages.requires_grad
    loss = promise_and_progress(predictions, rewards, 0.9, 0.8, 0.5)
    loss.backward()
    assert predictions.grad is not None
    assert torch.isfinite(predictions.grad).all()
    assert float(loss.detach()) >= 0


def test_promise_and_progress_by_hand() -> None:
    values, targets = tensor([0.5, 0.6]), tensor([1.0, 0.6])
    assert float(promise_loss(values, targets)) == pytest.approx(0.5 * 0.25 / 2)
    assert float(progress_loss(values, tensor([9.0, 0.3]))) == pytest.approx(0.5 * 0.04)
    assert float(progress_loss(values[:1], tensor([9.0]))) == 0
    assert float(promise_loss(values[:0], targets[:0])) == 0


def test_a_correct_model_has_zero_loss() -> None:
    values, rewards = tensor([0.81, 0.9, 1.0]), tensor([0.0, 0.0, 1.0])
    targets, advantages = bootstrapped_targets(values, rewards, 0.9, 0.95)
    assert float(promise_loss(values, targets)) == pytest.approx(0, abs=1e-12)
    assert advantages.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
