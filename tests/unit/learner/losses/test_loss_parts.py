"""Check every ratio, weight, clip and mask against its published vector, and its gradient against the formula."""

import math
from dataclasses import replace

import pytest
import torch
from loss_batches import BEHAVIOUR, CURRENT, PROXIMAL, doubles, one_sequence, ragged
from torch import Tensor

from stepstream.learner.losses import (
    Banded,
    Batch,
    BinaryDivergence,
    Cispo,
    Clip,
    Objective,
    OffPolicySequences,
    Ppo,
    Sapo,
    SecondMoment,
    SecondMomentRange,
    Terms,
    Truncated,
    Unweighted,
    Veto,
    Weight,
)
from stepstream.learner.losses.m2po import solved_range
from stepstream.learner.losses.ratios import mean_over, shared
from stepstream.learner.losses.weights import binary_divergence

ALL = torch.ones(4, dtype=torch.bool)
ONE = torch.zeros(4, dtype=torch.int64)


def near(actual: Tensor, *expected: float) -> None:
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)


def gradient(objective: Objective, batch: Batch) -> Tensor:
    current = batch.current.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(objective.terms(replace(batch, current=current)).objective.sum(), current)
    return found


def test_ratios() -> None:
    log_r = CURRENT - PROXIMAL
    near(log_r.exp(), 1.349859, 0.904837, 0.740818, 1.000000)
    near(shared(log_r, ONE, ALL).exp(), *[0.975310] * 4)
    assert math.exp(log_r.sum().item()) == pytest.approx(0.904837, abs=1e-6)
    by_step = shared(log_r, torch.tensor([0, 0, 1, 1]), ALL).exp()
    near(by_step, *[math.exp(0.1)] * 2, *[math.exp(-0.15)] * 2)


@pytest.mark.parametrize(
    ("weight", "sign", "expected"),
    [
        (Truncated(2.0), 1.0, (1.414619, 1.809675, 0.332871, 2.000000)),
        (Truncated(2.0), -1.0, (-1.491825, -1.809675, -0.359463, -2.000000)),
        (Banded(0.5, 5.0), 1.0, (1.414619, 2.459603, 0, 0)),
        (Banded(0.5, 5.0), -1.0, (-1.491825, -2.459603, 0, 0)),
        (Unweighted(), 1.0, (1.280000, 0.904837, 0.740818, 1.000000)),
        (Unweighted(), -1.0, (-1.349859, -0.904837, -0.800000, -1.000000)),
    ],
)
def test_weighted_terms(weight: Weight, sign: float, expected: tuple[float, ...]) -> None:
    result = Objective(weight=weight).terms(one_sequence(sign))
    near(result.objective, *expected)
    assert result.rejected.tolist() == [value == 0 for value in expected]


def test_kpop() -> None:
    near(binary_divergence(PROXIMAL, BEHAVIOUR), 0.003176, 0.169860, 0.495276, 0.327397)
    result = Objective(weight=BinaryDivergence(0.3)).terms(one_sequence(1.0))
    assert result.rejected.tolist() == [False, False, True, True]
    assert torch.isfinite(binary_divergence(doubles(0.0, -1e-12), doubles(-700.0, 0.0))).all()


@pytest.mark.parametrize(
    ("p", "mu", "divergence"),
    [
        # KL(p‖μ) = 4/5·ln 8/5 + 1/5·ln 2/5 = 0.1927; KL(μ‖p) = 1/2·ln 5/8 + 1/2·ln 5/2 = 1/2·ln 25/16.
        (4 / 5, 1 / 2, math.log(5 / 4)),
        (1 / 2, 4 / 5, math.log(5 / 4)),
        # Mirrored about a half, both are (1 - 2a)·ln (1 - a)/a with a = 1/10.
        (9 / 10, 1 / 10, 8 / 10 * math.log(9)),
        (1 / 10, 9 / 10, 8 / 10 * math.log(9)),
        # A rare token: a hundred times likelier, and yet hardly another distribution.
        (1e-4, 1e-6, 1e-4 * math.log(100) + (1 - 1e-4) * math.log((1 - 1e-4) / (1 - 1e-6))),
    ],
)
def test_kpop_by_hand(p: float, mu: float, divergence: float) -> None:
    """No published implementation exists: two points, "this token" and "another", worked out on paper."""
    proximal, behaviour = doubles(math.log(p)), doubles(math.log(mu))
    assert binary_divergence(proximal, behaviour).item() == pytest.approx(divergence, rel=1e-9)
    advantage, place = doubles(-2.0), torch.zeros(1, dtype=torch.int64)
    batch = Batch(proximal, behaviour, advantage, proximal, place, place)
    for bound, accepted in ((divergence * 1.0001, 1.0), (divergence * 0.9999, 0.0)):
        kpop = Objective(weight=BinaryDivergence(bound), clip=Cispo())
        # J = w·A·log θ: its gradient by log θ is w·A where the token is kept, as θ = p here.
        assert gradient(kpop, batch).item() == pytest.approx(-2.0 * p / mu * accepted)


def test_m2po_of_areal() -> None:
    log_w = PROXIMAL - BEHAVIOUR
    accepted = SecondMoment(0.5)(log_w, PROXIMAL, BEHAVIOUR, ALL) > 0
    assert accepted.tolist() == [True, False, True, False]
    assert int((SecondMoment(1e-9)(log_w, PROXIMAL, BEHAVIOUR, ALL) > 0).sum()) == 1
    assert not SecondMoment(0.5)(log_w, PROXIMAL, BEHAVIOUR, ~ALL).any()


def test_m2po_of_its_authors_by_hand() -> None:
    log_q, up = doubles(0.1, 0.2, 0.9, 3.0), doubles(1.0, 1.0, 1.0, -1.0)
    # Harmful are the first three, of squares 0.01, 0.04 and 0.81; the last is pushed back already.
    assert solved_range(log_q, up, ALL, 0.2867) == math.inf  # their mean is 0.28667
    assert solved_range(log_q, up, ALL, 0.28) == pytest.approx(0.2)  # 0.9 again would be too much
    assert solved_range(log_q, up, ALL, 0.031) == pytest.approx(0.2)  # 0.01 + 0.04 + 0.04 = 0.09 < 0.093
    assert solved_range(log_q, up, ALL, 0.02) == pytest.approx(0.1)
    assert solved_range(log_q, up, ALL, 0.009) == 0.0
    assert solved_range(log_q, up, ~ALL, 0.009) == math.inf


def test_sapo() -> None:
    near(Sapo()(CURRENT - PROXIMAL, CURRENT, doubles(1, 1, 1, 1), ALL)[0], 2.346333, 1.904909, 1.742259, 2.000000)


def test_off_policy_sequences() -> None:
    on_proximal = replace(one_sequence(-1.0), behaviour=PROXIMAL)
    assert mean_over(PROXIMAL - CURRENT, ONE, ALL)[0].item() == pytest.approx(0.025)
    for bound, stays in ((0.0251, True), (0.0249, False)):
        mask = OffPolicySequences(bound)
        assert mask(on_proximal, PROXIMAL - PROXIMAL, ALL).tolist() == [stays] * 4
        for harmless in (torch.ones(4), torch.zeros(4)):
            assert mask(replace(on_proximal, advantage=harmless), PROXIMAL - PROXIMAL, ALL).all()


def test_veto() -> None:
    batch = replace(one_sequence(1.0), sequences=torch.tensor([0, 0, 1, 1]))
    accepted = Objective(masks=(Veto(0.5),)).terms(batch).rejected.logical_not()
    assert accepted.tolist() == [True, True, False, False]
    assert Objective(masks=(Veto(0.4),)).terms(batch).rejected.sum() == 0


CLIPS: list[tuple[Clip, float]] = [
    (Ppo(0.2, 0.28, 3.0), 1.0),
    (Ppo(0.2, 0.28, 3.0), -1.0),
    (Cispo(1.1), 1.0),
    (Cispo(1.1), -1.0),
    (Sapo(), 1.0),
    (Sapo(), -1.0),
    (SecondMomentRange(0.04, 0.01, 0.01), 1.0),
]


@pytest.mark.parametrize(("clip", "sign"), CLIPS)
def test_gradients_by_hand(clip: Clip, sign: float) -> None:
    r, w = (CURRENT - PROXIMAL).exp(), (PROXIMAL - BEHAVIOUR).exp().clamp(max=2.0)
    if isinstance(clip, Ppo):
        inside = (r <= 1.28) if sign > 0 else (r >= 0.8)
        expected = w * r * sign * inside
    elif isinstance(clip, Cispo):
        expected = w * r.clamp(max=1.1) * sign
    elif isinstance(clip, Sapo):
        gate = torch.sigmoid((clip.positive if sign > 0 else clip.negative) * (r - 1))
        expected = w * sign * 4 * gate * (1 - gate) * r
    else:
        # Harmful: log r of 0.3 alone, which is above the budget by itself: the smallest range is left.
        expected = w * r * (r <= 1.01)
    near(gradient(Objective(clip=clip), one_sequence(sign)), *expected.tolist())


@pytest.mark.parametrize("clip", [Ppo(0.02, 0.03), Cispo(1.0), Sapo()])
@pytest.mark.parametrize("weight", [Truncated(), Banded(), BinaryDivergence(0.3), SecondMoment(0.5)])
def test_only_the_current_policy_carries_gradient(clip: Clip, weight: Weight) -> None:
    inputs = [x.clone().requires_grad_() for x in (CURRENT, BEHAVIOUR, doubles(1, -1, 1, -1), PROXIMAL)]
    current, behaviour, advantage, proximal = inputs
    batch = Batch(current, behaviour, advantage, proximal, sequences=ONE, steps=ONE)
    for ratio in ("token", "sequence", "step"):
        made = Objective(
            ratio=ratio, weight=weight, weight_level="sequence", clip=clip, masks=(Veto(), OffPolicySequences())
        )
        made.terms(batch).objective.sum().backward()
    assert [x.grad is None for x in inputs] == [False, True, True, True]


def test_gradient_of_a_sequence_s_ratio_is_that_of_its_geometric_mean() -> None:
    data = ragged(5, spread=0.3)
    objective = Objective(ratio="sequence", weight=Unweighted(), clip=Ppo(0.9, 9.0))
    assert data.batch.proximal is not None
    assert data.batch.sequences is not None
    actual = gradient(objective, data.batch)
    start, direct = 0, []
    for length in data.lengths:
        span = slice(start, start + length)
        log_r = (data.batch.current - data.batch.proximal)[span]
        mean = log_r.mean().exp()
        # The whole sequence's objective: as many tokens times the one ratio times the one advantage.
        direct.append(torch.autograd.grad(length * mean * data.batch.advantage[span][0], data.batch.current)[0][span])
        start += length
    torch.testing.assert_close(actual, torch.cat(direct))


def test_gradcheck_of_smooth_parts() -> None:
    leaf = CURRENT.clone().requires_grad_()
    signs = doubles(1, -1, -1, 1)

    def objective(x: Tensor) -> Tensor:
        made = Objective(proximal="behaviour", weight=Unweighted(), clip=Sapo(), kl=0.1)
        return made.terms(replace(one_sequence(signs, x), reference=PROXIMAL)).objective

    assert torch.autograd.gradcheck(objective, (leaf,))


def test_a_missing_field_of_the_batch_is_named() -> None:
    bare = Batch(CURRENT, BEHAVIOUR, torch.ones(4))
    for objective, lacking in (
        (Objective(), "proximal"),
        (Objective(proximal="interpolated"), "versions"),
        (Objective(proximal="behaviour", ratio="sequence"), "sequences"),
        (Objective(proximal="behaviour", ratio="step"), "steps"),
        (Objective(proximal="behaviour", kl=0.1), "reference"),
    ):
        with pytest.raises(ValueError, match=lacking):
            objective.terms(bare)


def test_an_empty_batch_has_zero_loss() -> None:
    nothing = torch.zeros(0, dtype=torch.float64)
    places = torch.zeros(0, dtype=torch.int64)
    batch = Batch(nothing, nothing, nothing, nothing, places, places)
    result: Terms = Objective(ratio="sequence", masks=(Veto(), OffPolicySequences()), weight=SecondMoment()).terms(
        batch
    )
    assert result.objective.sum() == 0.0
