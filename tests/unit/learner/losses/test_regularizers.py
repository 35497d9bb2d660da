"""Check penalties and bonuses exactly: expectations and gradients over all outcomes of a three-way policy."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_batches import doubles
from torch import Tensor

from stepstream.learner.losses.ratios import log_ratio
from stepstream.learner.losses.regularizers import entropy_bonus, k1, k2, k3, penalty

THETA, REFERENCE, OLD = doubles(0.5, 0.3, 0.2), doubles(0.4, 0.4, 0.2), doubles(0.2, 0.5, 0.3)
FORWARD = (0.098938, -0.093885, -0.005053)
"""Gradient of KL(θ‖ref) by θ's logits."""
BACKWARD = (0.100000, -0.100000, 0.000000)
"""Of KL(ref‖θ)."""


def by_logits(sampled_from: Tensor, of_token: Callable[[Tensor], Tensor]) -> Tensor:
    """Gradient by the logits of θ of the expectation of `of_token(log θ)` over tokens of `sampled_from`."""
    logits = THETA.log().requires_grad_()
    current = logits.log_softmax(0)
    return torch.autograd.grad((sampled_from * of_token(current)).sum(), logits)[0]


def near(actual: Tensor, *expected: float) -> None:
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)


def test_means_over_tokens_of_the_policy() -> None:
    log_theta, log_ref = THETA.log(), REFERENCE.log()
    means = [(THETA * k(log_theta, log_ref)).sum().item() for k in (k1, k2, k3)]
    assert means == pytest.approx([0.025267, 0.024862, 0.025267], abs=1e-6)


def test_gradients_over_tokens_of_the_policy() -> None:
    log_ref = REFERENCE.log()
    near(by_logits(THETA, lambda x: k1(x, log_ref)), 0, 0, 0)
    near(by_logits(THETA, lambda x: k2(x, log_ref)), *FORWARD)
    near(by_logits(THETA, lambda x: k3(x, log_ref)), *BACKWARD)
    near(by_logits(THETA, lambda x: penalty("on_policy_loss", x, log_ref)), *FORWARD)


def test_in_the_reward() -> None:
    log_ref = REFERENCE.log()
    near(by_logits(THETA, lambda x: penalty("reward", x, log_ref) * x), *FORWARD)
    assert not penalty("reward", THETA.log().requires_grad_(), log_ref).requires_grad


def test_gradients_over_tokens_of_an_older_policy() -> None:
    log_ref, log_old = REFERENCE.log(), OLD.log()

    def q(x: Tensor) -> Tensor:
        return log_ratio(x, log_old)[0].exp()

    near(by_logits(OLD, lambda x: penalty("off_policy_loss", x, log_ref, log_old)), *FORWARD)
    near(by_logits(OLD, lambda x: q(x) * k1(x, log_ref)), *FORWARD)
    near(by_logits(OLD, lambda x: q(x).detach() * k2(x, log_ref)), *FORWARD)
    near(by_logits(OLD, lambda x: q(x).detach() * k3(x, log_ref)), *BACKWARD)  # the trap
    value = (OLD * penalty("off_policy_loss", THETA.log(), log_ref, log_old)).sum()
    assert value.item() == pytest.approx(0.025267, abs=1e-6)
    with pytest.raises(ValueError, match="behaviour"):
        penalty("off_policy_loss", THETA.log(), log_ref)


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=9))
def test_k2_and_k3_are_never_negative(pairs: list[tuple[float, float]]) -> None:
    current, reference = torch.tensor(pairs, dtype=torch.float64).T
    assert (k3(current, reference) >= 0).all()
    assert (k2(current, reference) >= 0).all()


@pytest.mark.parametrize("sampled_from", [THETA, OLD])
def test_entropy(sampled_from: Tensor) -> None:
    logits = THETA.log().requires_grad_()
    current = logits.log_softmax(0)
    (exact,) = torch.autograd.grad(-(current.exp() * current).sum(), logits)
    log_q = THETA.log() - sampled_from.log()
    near(by_logits(sampled_from, lambda x: entropy_bonus(x, log_q, 1e9)), *exact.tolist())
    value = (sampled_from * entropy_bonus(THETA.log(), log_q, 1e9)).sum()
    assert value.item() == pytest.approx(-(THETA * THETA.log()).sum().item())
