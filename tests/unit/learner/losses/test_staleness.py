"""Check effective sample size, KL estimate, interpolated proximal policy and figures by staleness."""

import pytest
import torch
from loss_batches import BEHAVIOUR, CURRENT, PROXIMAL, doubles

from stepstream.learner.losses import by_lag, effective_share, kl_estimate, lag_shares
from stepstream.learner.losses.staleness import interpolated_proximal

W = (PROXIMAL - BEHAVIOUR).exp()


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
