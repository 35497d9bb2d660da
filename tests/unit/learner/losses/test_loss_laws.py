"""Check laws that hold for every objective and batch."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_batches import Ragged, ragged
from torch import Tensor

from stepstream.learner.losses import (
    Banded,
    Batch,
    BinaryDivergence,
    Cispo,
    Objective,
    OffPolicySequences,
    Ppo,
    Sapo,
    SecondMoment,
    SecondMomentRange,
    Truncated,
    Unweighted,
    Veto,
    Weight,
)
from stepstream.learner.losses.staleness import interpolated_proximal

WEIGHTS: list[Weight] = [Truncated(), Banded(), BinaryDivergence(0.1), SecondMoment()]
COUPLED: dict[str, Any] = {"proximal": "behaviour", "weight": Unweighted()}
OBJECTIVES = [
    *(Objective(weight=weight) for weight in WEIGHTS),
    Objective(ratio="sequence", clip=Ppo(3e-4, 4e-4)),
    Objective(ratio="step", weight=Banded(), weight_level="sequence"),
    Objective(ratio="sequence", clip=Cispo(1.0), masks=(OffPolicySequences(0.01), Veto(0.5))),
    Objective(proximal="interpolated", clip=Cispo(1.1)),
    Objective(clip=Sapo(), **COUPLED),
    Objective(clip=SecondMomentRange(), **COUPLED),
    Objective(kl=0.1, entropy=0.01),
]
BATCHES = st.builds(
    ragged, st.integers(0, 2**32), sequences=st.integers(1, 6), spread=st.sampled_from([0.05, 0.5, 2.0])
)
FEW = settings(max_examples=15)


def outcome(objective: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
    """Terms and their gradient by token."""
    current = batch.current.detach().clone().requires_grad_()
    terms = objective.terms(replace(batch, current=current)).objective
    return terms.detach(), torch.autograd.grad(terms.sum(), current)[0]


def chosen(batch: Batch, index: Tensor) -> Batch:
    """The batch's tokens at `index`, in its order."""
    values: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return Batch(**values | {name: value[index] for name, value in values.items() if isinstance(value, Tensor)})


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(data=BATCHES, seed=st.integers(0, 99))
@FEW
def test_the_order_of_tokens_does_not_matter(objective: Objective, data: Ragged, seed: int) -> None:
    order = torch.randperm(data.current.numel(), generator=torch.Generator().manual_seed(seed))
    for straight, shuffled in zip(
        outcome(objective, data.batch), outcome(objective, chosen(data.batch, order)), strict=True
    ):
        torch.testing.assert_close(straight[order], shuffled)


@pytest.mark.parametrize("objective", [each for each in OBJECTIVES if "Second" not in repr(each)])
@given(data=BATCHES)
@FEW
def test_how_sequences_are_packed_does_not_matter(objective: Objective, data: Ragged) -> None:
    """M2PO alone looks at all tokens of a pass together."""
    assert data.batch.sequences is not None
    alone = [
        outcome(objective, chosen(data.batch, (data.batch.sequences == n).nonzero().flatten()))
        for n in range(len(data.lengths))
    ]
    for packed, apart in zip(outcome(objective, data.batch), zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(packed, torch.cat(apart))


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(data=BATCHES)
@FEW
def test_tokens_that_are_not_finite_are_as_if_they_were_not_there(objective: Objective, data: Ragged) -> None:
    holes = torch.arange(data.current.numel()) % 3 == 1
    behaviour = torch.where(holes, torch.nan, data.batch.behaviour)
    terms, gradient = outcome(objective, replace(data.batch, behaviour=behaviour))
    finite = chosen(data.batch, (~holes).nonzero().flatten())
    expected = outcome(objective, finite)
    torch.testing.assert_close(terms[~holes], expected[0])
    torch.testing.assert_close(gradient[~holes], expected[1])
    assert not terms[holes].any()
    assert not gradient[holes].any()


@pytest.mark.parametrize("clip", [Ppo(), Cispo()])
@given(data=BATCHES)
@FEW
def test_on_policy_and_fresh_it_is_the_policy_gradient(clip: Ppo | Cispo, data: Ragged) -> None:
    same = data.current.detach()
    fresh = replace(data.batch, behaviour=same, proximal=same)
    for weight in (*WEIGHTS, Unweighted()):
        torch.testing.assert_close(outcome(Objective(weight=weight, clip=clip), fresh)[1], data.batch.advantage)
    coupled = Objective(clip=Sapo(), **COUPLED)
    gate = torch.ones_like(same)  # 4·σ(0)·(1 - σ(0))
    torch.testing.assert_close(outcome(coupled, fresh)[1], gate * data.batch.advantage)


@given(data=BATCHES)
@FEW
def test_with_the_behaviour_policy_as_proximal_it_is_plain_ppo(data: Ragged) -> None:
    batch = replace(data.batch, proximal=data.batch.behaviour)
    plain = outcome(Objective(**COUPLED), data.batch)
    for weight in WEIGHTS:
        for actual, expected in zip(outcome(Objective(weight=weight), batch), plain, strict=True):
            torch.testing.assert_close(actual, expected)


@given(data=BATCHES)
@FEW
def test_an_interpolated_proximal_policy_is_used_like_a_computed_one(data: Ragged) -> None:
    batch = data.batch
    assert batch.versions is not None
    guess = interpolated_proximal(batch.current, batch.behaviour, batch.versions, batch.version)
    for actual, expected in zip(
        outcome(Objective(proximal="interpolated"), batch),
        outcome(Objective(), replace(batch, proximal=guess)),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("level", ["sequence", "step"])
@given(data=BATCHES)
@FEW
def test_a_shared_ratio_of_one_token_is_its_own(level: Any, data: Ragged) -> None:
    each = torch.arange(data.current.numel())
    batch = replace(data.batch, sequences=each, steps=each)
    for actual, expected in zip(
        outcome(Objective(ratio=level, weight_level=level), batch), outcome(Objective(), batch), strict=True
    ):
        torch.testing.assert_close(actual, expected)


@given(data=BATCHES)
@FEW
def test_no_weight_exceeds_w_and_rejection_raises_no_other_weight(data: Ragged) -> None:
    batch = data.batch
    assert batch.proximal is not None
    log_w = batch.proximal - batch.behaviour
    valid = torch.ones_like(log_w, dtype=torch.bool)
    for weight in WEIGHTS:
        made = weight(log_w, batch.proximal, batch.behaviour, valid)
        assert (made <= log_w.exp()).all()
        assert (made >= 0).all()
    raw = outcome(Objective(weight=Truncated(1e12)), batch)[1]
    for rejecting in (Banded(), BinaryDivergence(0.1), SecondMoment()):
        gradient = outcome(Objective(weight=rejecting), batch)[1]
        assert ((gradient == 0) | torch.isclose(gradient, raw)).all()
    for mask in (OffPolicySequences(0.01), Veto(0.5)):
        gradient = outcome(Objective(masks=(mask,)), batch)[1]
        assert ((gradient == 0) | (gradient == outcome(Objective(), batch)[1])).all()


@given(data=BATCHES)
@FEW
def test_rejected_tokens_are_neither_clipped_nor_capped(data: Ragged) -> None:
    for objective in OBJECTIVES:
        terms = objective.terms(data.batch)
        assert not (terms.rejected & (terms.clipped | terms.capped)).any()
