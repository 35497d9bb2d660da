import math

import pytest
import torch
from torch import Tensor

from stepstream.learner.loss import Clip, Terms, decoupled_terms, effective_share, kl_estimate, token_scales

BEHAVIOUR = torch.tensor([-1.0, -2.0, -0.2, -3.0], dtype=torch.float64)
PROXIMAL = torch.tensor([-0.9, -1.0, -1.0, -1.2], dtype=torch.float64)
CURRENT = torch.tensor([-0.6, -1.1, -1.3, -1.2], dtype=torch.float64)
NEVER = 1e9


def terms(sign: float, *, cap: float = NEVER, dual: float = NEVER, current: Tensor = CURRENT) -> Terms:
    clip = Clip(low=0.2, high=0.28, cap=cap, dual=dual)
    return decoupled_terms(current, PROXIMAL, BEHAVIOUR, torch.full((4,), sign, dtype=torch.float64), clip)


def near(actual: Tensor, *expected: float) -> None:
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)


def test_weights_before_truncation() -> None:
    near(terms(1.0, cap=2.0).weight, 1.105171, 2.718282, 0.449329, 6.049647)


def test_truncated_terms() -> None:
    near(terms(1.0, cap=2.0).objective, 1.414619, 1.809675, 0.332871, 2.000000)
    near(terms(-1.0, cap=2.0).objective, -1.491825, -1.809675, -0.359463, -2.000000)


def test_terms_on_data_of_the_proximal_policy() -> None:
    clip = Clip(0.2, 0.28, 2.0, NEVER)
    for sign, expected in (
        (1.0, (1.280000, 0.904837, 0.740818, 1.000000)),
        (-1.0, (-1.349859, -0.904837, -0.800000, -1.000000)),
    ):
        on_policy = decoupled_terms(CURRENT, PROXIMAL, PROXIMAL, torch.full((4,), sign, dtype=torch.float64), clip)
        near(on_policy.objective, *expected)


@pytest.mark.parametrize(("dual", "expected"), [(3.0, -3.0), (NEVER, -4.0)])
def test_dual_clip(dual: float, expected: float) -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    result = decoupled_terms(zero + math.log(4), zero, zero, zero - 1, Clip(0.2, 0.28, 2.0, dual))
    near(result.objective, expected)


def test_effective_sample_size_is_of_the_untruncated_weights() -> None:
    weight = terms(1.0, cap=2.0).weight
    assert effective_share(weight) == pytest.approx(0.586606, abs=1e-6)
    assert effective_share(weight) * 4 == pytest.approx(2.346425, abs=1e-6)
    assert effective_share(torch.zeros(3)) == 0.0


def test_kl_estimate_is_exact_in_expectation() -> None:
    behaviour, proximal = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    # Each outcome as often as the behaviour policy samples it.
    weight = (proximal / behaviour).repeat_interleave(torch.tensor([5, 3, 2]))
    assert kl_estimate(weight) == pytest.approx(0.025267, abs=1e-6)
    assert kl_estimate(torch.ones(3)) == 0.0
    assert kl_estimate(torch.zeros(0)) == 0.0


def test_gradient_is_that_of_the_formula() -> None:
    current = CURRENT.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: terms(1.0, cap=2.0, current=x).objective, (current,))
    assert torch.autograd.gradcheck(lambda x: terms(-1.0, cap=2.0, dual=3.0, current=x).objective, (current,))


def test_gradient_flows_through_the_ratio_alone_and_stops_where_clipped() -> None:
    inputs = [x.clone().requires_grad_() for x in (CURRENT, PROXIMAL, BEHAVIOUR)]
    result = decoupled_terms(*inputs, torch.ones(4, dtype=torch.float64), Clip(0.2, 0.28, 2.0, 3.0))
    result.objective.sum().backward()
    assert inputs[1].grad is None
    assert inputs[2].grad is None
    assert inputs[0].grad is not None
    # d(w̃·r·A)/d log θ = w̃·r·A; the first token's ratio is beyond the clip.
    near(inputs[0].grad, 0.0, 1.809675, 0.332871, 2.0)
    assert result.clipped.tolist() == [True, False, False, False]


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.1, 2.0, 4.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_token_is_called_clipped_exactly_when_it_has_no_gradient(ratio: float, sign: float) -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    current = (zero + math.log(ratio)).requires_grad_()
    result = decoupled_terms(current, zero, zero, zero + sign, Clip(0.2, 0.28, 2.0, 3.0))
    result.objective.sum().backward()
    assert current.grad is not None
    assert (current.grad.item() == 0.0) is result.clipped.item()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_masked(bad: float) -> None:
    for which in range(3):
        inputs = [CURRENT.clone(), PROXIMAL.clone(), BEHAVIOUR.clone()]
        inputs[which][1] = bad
        inputs[0].requires_grad_()
        result = decoupled_terms(*inputs, torch.ones(4, dtype=torch.float64), Clip(0.2, 0.28, 2.0, 3.0))
        result.objective.sum().backward()
        assert result.objective[1] == 0.0
        assert result.weight[1] == 0.0
        assert inputs[0].grad is not None
        assert torch.isfinite(inputs[0].grad).all()


def test_log_ratios_are_bounded() -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    far = decoupled_terms(zero, zero, zero - 1000, zero + 1, Clip(0.2, 0.28, 1e12, 3.0))
    near(far.weight.log(), 20.0)


def test_scales() -> None:
    lengths = [2, 0, 4]
    assert token_scales(lengths, "grpo", 10) == pytest.approx([1 / 4, 1 / 2, 1 / 8])  # the empty one is left out
    assert token_scales(lengths, "rloo", 10) == pytest.approx([1 / 6] * 3)
    assert token_scales(lengths, "dr_grpo", 10) == pytest.approx([1 / 20] * 3)
    assert token_scales([], "grpo", 10) == []
