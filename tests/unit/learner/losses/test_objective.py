"""Check the default objective, decoupled and truncated by token: vectors, gradient and masks."""

import math
from dataclasses import replace

import pytest
import torch
from loss_batches import BEHAVIOUR, CURRENT, PROXIMAL, doubles, one_sequence
from torch import Tensor

from stepstream.learner.losses import Batch, Objective, Ppo, Terms, Truncated, token_scales

NEVER = 1e9


def objective(cap: float = NEVER, dual: float = NEVER) -> Objective:
    return Objective(weight=Truncated(cap), clip=Ppo(0.2, 0.28, dual))


def terms(sign: float, *, cap: float = NEVER, dual: float = NEVER, current: Tensor = CURRENT) -> Terms:
    return objective(cap, dual).terms(one_sequence(sign, current))


def one_token(ratio: float, sign: float, dual: float = 3.0) -> tuple[Tensor, Terms]:
    zero = doubles(0.0)
    current = (zero + math.log(ratio)).requires_grad_()
    return current, objective(2.0, dual).terms(Batch(current, zero, zero + sign, zero))


def near(actual: Tensor, *expected: float) -> None:
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)


def test_weights_before_truncation() -> None:
    near(terms(1.0, cap=2.0).weight, 1.105171, 2.718282, 0.449329, 6.049647)


def test_truncated_terms() -> None:
    near(terms(1.0, cap=2.0).objective, 1.414619, 1.809675, 0.332871, 2.000000)
    near(terms(-1.0, cap=2.0).objective, -1.491825, -1.809675, -0.359463, -2.000000)
    assert terms(1.0, cap=2.0).capped.tolist() == [False, True, False, True]
    assert not terms(1.0, cap=2.0).rejected.any()


def test_terms_on_data_of_the_proximal_policy() -> None:
    for sign, expected in (
        (1.0, (1.280000, 0.904837, 0.740818, 1.000000)),
        (-1.0, (-1.349859, -0.904837, -0.800000, -1.000000)),
    ):
        near(objective().terms(replace(one_sequence(sign), behaviour=PROXIMAL)).objective, *expected)


@pytest.mark.parametrize(("dual", "expected"), [(3.0, -3.0), (NEVER, -4.0), (math.inf, -4.0)])
def test_dual_clip(dual: float, expected: float) -> None:
    near(one_token(4.0, -1.0, dual)[1].objective, expected)


def test_gradient_is_that_of_the_formula() -> None:
    current = CURRENT.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: terms(1.0, cap=2.0, current=x).objective, (current,))
    assert torch.autograd.gradcheck(lambda x: terms(-1.0, cap=2.0, dual=3.0, current=x).objective, (current,))


def test_gradient_flows_through_the_ratio_alone_and_stops_where_clipped() -> None:
    inputs = [x.clone().requires_grad_() for x in (CURRENT, BEHAVIOUR, torch.ones_like(CURRENT), PROXIMAL)]
    current, behaviour, advantage, proximal = inputs
    result = objective(2.0, 3.0).terms(Batch(current, behaviour, advantage, proximal))
    result.objective.sum().backward()
    assert [x.grad is None for x in inputs] == [False, True, True, True]
    assert inputs[0].grad is not None
    # d(w̃·r·A)/d log θ = w̃·r·A; the first token's ratio is beyond the clip.
    near(inputs[0].grad, 0.0, 1.809675, 0.332871, 2.0)
    assert result.clipped.tolist() == [True, False, False, False]


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.1, 2.0, 4.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_token_is_called_clipped_exactly_when_it_has_no_gradient(ratio: float, sign: float) -> None:
    current, result = one_token(ratio, sign)
    result.objective.sum().backward()
    assert current.grad is not None
    assert (current.grad.item() == 0.0) is result.clipped.item()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_masked(bad: float) -> None:
    for which in range(3):
        inputs = [CURRENT.clone(), BEHAVIOUR.clone(), PROXIMAL.clone()]
        inputs[which][1] = bad
        inputs[0].requires_grad_()
        result = objective(2.0, 3.0).terms(Batch(inputs[0], inputs[1], torch.ones_like(CURRENT), inputs[2]))
        result.objective.sum().backward()
        assert result.objective[1] == 0.0
        assert result.weight[1] == 0.0
        assert inputs[0].grad is not None
        assert torch.isfinite(inputs[0].grad).all()


def test_log_ratios_are_bounded() -> None:
    zero = doubles(0.0)
    near(objective(1e12).terms(Batch(zero, zero - 1000, zero + 1, zero)).weight.log(), 20.0)


def test_scales() -> None:
    lengths = [2, 0, 4]
    assert token_scales(lengths, "grpo", 10) == pytest.approx([1 / 4, 1 / 2, 1 / 8])  # the empty one is left out
    assert token_scales(lengths, "rloo", 10) == pytest.approx([1 / 6] * 3)
    assert token_scales(lengths, "dr_grpo", 10) == pytest.approx([1 / 20] * 3)
    assert token_scales([], "grpo", 10) == []
