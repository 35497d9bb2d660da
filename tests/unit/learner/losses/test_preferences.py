"""Check DPO, KTO and SFT against published vectors."""

import math

import pytest
import torch
from loss_batches import CURRENT, doubles

from stepstream.learner.losses.preferences import dpo, kto, sequence_sums, sft


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
