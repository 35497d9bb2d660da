"""DPO, KTO and SFT by their vectors; effective sample size, KL and figures by lag."""

import math

import pytest
import torch
from loss_batches import BEHAVIOUR, CURRENT, PROXIMAL, doubles

from stepstream.learner.losses import by_lag, effective_share, kl_estimate, lag_shares
from stepstream.learner.losses.preferences import dpo, kto, sequence_sums, sft
from stepstream.learner.losses.staleness import interpolated_proximal

W = (PROXIMAL - BEHAVIOUR).exp()


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_dpo() -> None:
    pair = [doubles(-10.0).requires_grad_(), doubles(-15.0).requires_grad_(), doubles(-12.0), doubles(-13.0)]
    loss = dpo(pair[0], pair[1], pair[2], pair[3])
    assert loss.item() == pytest.approx(0.513015, abs=1e-6)
    better, worse = torch.autograd.grad(loss.sum(), pair[:2])
    # β(1 - σ(β·margin)), margin 4
    assert worse.item() == -better.item() == pytest.approx(0.1 * (1 - sigmoid(0.4)))


def test_kto() -> None:
    current = doubles(-10.0, -15.0).requires_grad_()
    good = torch.tensor([True, False])
    z = doubles(0.5).requires_grad_()
    loss = kto(current, doubles(-12.0, -13.0), good, z)
    assert loss.tolist() == pytest.approx([0.462570, 0.437823], abs=1e-6)
    loss.sum().backward()
    assert z.grad is None
    assert current.grad is not None
    assert current.grad[0].item() == pytest.approx(-0.1 * 0.462570 * (1 - 0.462570), abs=1e-6)
    assert current.grad[1].item() == pytest.approx(0.1 * 0.437823 * (1 - 0.437823), abs=1e-6)
    below = kto(current, doubles(-12.0, -13.0), good, doubles(-3.0), weight_bad=2.0)  # z is never negative
    assert below.tolist() == pytest.approx([1 - sigmoid(0.2), 2 * (1 - sigmoid(0.2))])


def test_sft_is_a_mean_over_tokens() -> None:
    assert sft(CURRENT).item() == pytest.approx(1.05)
    assert sft(torch.zeros(0)).item() == 0.0


def test_sums_by_sequence() -> None:
    assert sequence_sums(CURRENT, torch.tensor([0, 2, 2, 0]), 4).tolist() == pytest.approx([-1.8, 0, -2.4, 0])


def test_effective_sample_size() -> None:
    assert effective_share(W) == pytest.approx(0.586606, abs=1e-6)
    assert effective_share(W) * 4 == pytest.approx(2.346425, abs=1e-6)
    assert effective_share(torch.zeros(3)) == effective_share(torch.zeros(0)) == 0.0


def test_kl_estimate_is_exact_in_expectation() -> None:
    behaviour, proximal = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    # Each outcome as often as the behaviour policy samples it.
    weight = (proximal / behaviour).repeat_interleave(torch.tensor([5, 3, 2]))
    assert kl_estimate(weight) == pytest.approx(0.025267, abs=1e-6)
    assert kl_estimate(torch.ones(3)) == 0.0
    assert kl_estimate(torch.zeros(0)) == 0.0


def test_an_interpolated_proximal_policy() -> None:
    current = CURRENT.clone().requires_grad_()
    found = interpolated_proximal(current, BEHAVIOUR, torch.tensor([5, 4, 2, 9]), 5)
    shares = doubles(0, 1 / 2, 3 / 4, 0)  # gap/(gap + 1); never beyond what was sampled
    assert found.tolist() == pytest.approx((BEHAVIOUR + shares * (CURRENT - BEHAVIOUR)).tolist())
    assert not found.requires_grad


def test_figures_by_lag() -> None:
    lags = torch.tensor([0, 0, 3, 20])
    buckets = by_lag(lags, W, [torch.tensor([True, False, True, False])])
    assert [bucket.most for bucket in buckets] == [0, 1, 2, 4, 8, None]
    assert [bucket.tokens for bucket in buckets] == [2, 0, 0, 1, 0, 1]
    assert [bucket.shares[0] for bucket in buckets] == [0.5, 0, 0, 1, 0, 0]
    assert buckets[0].effective_share == pytest.approx(effective_share(W[:2]))
    assert lag_shares(lags) == [0.5, 0, 0, 0.25, 0, 0.25]
    assert lag_shares(lags[:0]) == [0.0] * 6
