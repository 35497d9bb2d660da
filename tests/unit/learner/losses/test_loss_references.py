"""Loss and gradient as AReaL, TRL and M2PO's authors compute them, on random ragged batches.

The expected figures are data (`tests/support/reference_losses.py` writes them): AReaL 1.0.4, TRL 1.16.0, M2PO at
af54a3e8. AReaL computes weights in float32, so its tolerance is larger. Where meanings differ, the objective is
configured like the reference: AReaL ignores the behaviour policy without rejection sampling (weight none), clamping is
TIS and masking IcePop, its M2PO keeps no weight of its own; TRL's two-sided `delta` is the dual clip, its `old` policy
the proximal one here.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import reference_losses
import torch
from loss_batches import Credit, Ragged, ragged

from stepstream.learner.advantages import Aggregation
from stepstream.learner.losses import (
    Banded,
    Cispo,
    Objective,
    OffPolicySequences,
    Ppo,
    Sapo,
    SecondMoment,
    SecondMomentRange,
    Truncated,
    Unweighted,
    token_scales,
)
from stepstream.learner.losses.m2po import second_moment_mask
from stepstream.learner.losses.preferences import dpo, kto, sequence_sums
from stepstream.learner.losses.staleness import interpolated_proximal

DATA = Path(__file__).parents[3] / "data" / "losses"
PLAIN = Unweighted()
WIDE = Ppo(0.2, 0.28, float("inf"))
NARROW = Ppo(3e-4, 4e-4, float("inf"))
TWO_SIDED = Ppo(0.2, 0.28, 1.5)

AREAL = {
    "ppo": Objective(weight=PLAIN, clip=WIDE),
    "ppo_dual": Objective(weight=PLAIN, clip=TWO_SIDED),
    "ppo_coupled": Objective(proximal="behaviour", weight=PLAIN, clip=WIDE),
    "tis": Objective(weight=Truncated(2.0), clip=WIDE),
    "icepop": Objective(weight=Banded(0.5, 5.0), clip=WIDE),
    "mask_sequences": Objective(weight=Banded(0.9, 1.25), weight_level="sequence", clip=WIDE),
    "truncate_sequences": Objective(weight=Truncated(1.1), weight_level="sequence", clip=WIDE),
    "gspo": Objective(ratio="sequence", weight=PLAIN, clip=NARROW),
    "gspo_truncate_sequences": Objective(ratio="sequence", weight=Truncated(1.1), weight_level="sequence", clip=NARROW),
    "sapo": Objective(proximal="behaviour", weight=PLAIN, clip=Sapo()),
    "sapo_sequence": Objective(ratio="sequence", proximal="behaviour", weight=PLAIN, clip=Sapo()),
    "m2po": Objective(weight=SecondMoment(0.04), clip=WIDE),
    "m2po_wide": Objective(weight=SecondMoment(0.5), clip=WIDE),
}
TRL: dict[str, tuple[Objective, Aggregation]] = {
    "grpo": (Objective(weight=PLAIN, clip=WIDE), "grpo"),
    "bnpo": (Objective(weight=PLAIN, clip=WIDE), "rloo"),
    "dr_grpo": (Objective(weight=PLAIN, clip=WIDE), "dr_grpo"),
    "two_sided": (Objective(weight=PLAIN, clip=TWO_SIDED), "grpo"),
    "gspo": (Objective(ratio="sequence", weight=PLAIN, clip=NARROW), "grpo"),
    "cispo": (Objective(weight=PLAIN, clip=Cispo(1.2)), "rloo"),
    "cispo_sequence": (Objective(ratio="sequence", weight=PLAIN, clip=Cispo(1.05)), "rloo"),
    "sapo": (Objective(proximal="behaviour", weight=PLAIN, clip=Sapo()), "grpo"),
    "sapo_sequence": (Objective(ratio="sequence", proximal="behaviour", weight=PLAIN, clip=Sapo()), "grpo"),
    "opsm": (Objective(weight=PLAIN, clip=WIDE, masks=(OffPolicySequences(0.05),)), "grpo"),
    "tis": (Objective(weight=Truncated(2.0), clip=WIDE), "grpo"),
    "kl": (Objective(proximal="behaviour", weight=PLAIN, clip=WIDE, kl=0.04), "grpo"),
}
M2PO = {
    "m2po": Objective(proximal="behaviour", weight=PLAIN, clip=SecondMomentRange(0.04)),
    "m2po_middle": Objective(proximal="behaviour", weight=PLAIN, clip=SecondMomentRange(0.3)),
    "m2po_wide": Objective(proximal="behaviour", weight=PLAIN, clip=SecondMomentRange(10.0)),
}


@cache
def every_case(reference: str) -> list[dict[str, Any]]:
    """All figures of a reference."""
    found: list[dict[str, Any]] = json.loads((DATA / f"{reference}.json").read_text())
    return found


def cases(reference: str, *names: str) -> list[Any]:
    """The reference's cases of these names."""
    chosen = [case for case in every_case(reference) if case["case"] in names]
    return [pytest.param(case, id=f"{case['case']}-{case['credit']}-{case['seed']}") for case in chosen]


def data_of(expected: dict[str, Any]) -> Ragged:
    """The batch that the figures are of."""
    return ragged(expected["seed"], spread=expected["spread"], credit=expected["credit"])


def differences(expected: dict[str, Any], objective: Objective, rule: Aggregation) -> tuple[float, float]:
    """How far loss and gradient are from the expected ones, absolutely."""
    data = data_of(expected)
    scales = torch.tensor(token_scales(data.lengths, rule, reference_losses.TRL_LENGTH), dtype=torch.float64)
    terms = objective.terms(data.batch)
    loss = -(scales.repeat_interleave(torch.tensor(data.lengths)) * terms.objective).sum()
    (gradient,) = torch.autograd.grad(loss, data.current)
    away = gradient - torch.tensor(expected["gradient"], dtype=torch.float64)
    return abs(loss.item() - expected["loss"]), away.abs().max().item()


@pytest.mark.parametrize("expected", cases("areal", *AREAL))
def test_areal(expected: dict[str, Any]) -> None:
    assert max(differences(expected, AREAL[expected["case"]], "rloo")) < 1e-6


@pytest.mark.parametrize("expected", cases("trl", *TRL))
def test_trl(expected: dict[str, Any]) -> None:
    assert max(differences(expected, *TRL[expected["case"]])) < 1e-12


@pytest.mark.parametrize("expected", cases("m2po", *M2PO))
def test_m2po_s_authors(expected: dict[str, Any]) -> None:
    assert max(differences(expected, M2PO[expected["case"]], "rloo")) < 1e-6


@pytest.mark.parametrize("expected", cases("areal", "m2po", "m2po_wide"))
def test_areal_s_m2po_keeps_the_same_tokens(expected: dict[str, Any]) -> None:
    batch = data_of(expected).batch
    assert batch.proximal is not None
    budget = 0.04 if expected["case"] == "m2po" else 0.5
    mask = second_moment_mask(
        batch.proximal - batch.behaviour, torch.ones_like(batch.behaviour, dtype=torch.bool), budget
    )
    assert mask.tolist() == expected["kept"]
    assert budget > 0.04 or 0 < sum(expected["kept"]) < len(expected["kept"])


@pytest.mark.parametrize("expected", cases("areal", "interpolated"))
def test_areal_s_proximal_policy_without_a_forward_pass(expected: dict[str, Any]) -> None:
    batch = data_of(expected).batch
    assert batch.versions is not None
    proximal = interpolated_proximal(batch.current, batch.behaviour, batch.versions, batch.version)
    assert proximal.tolist() == pytest.approx(expected["proximal"], abs=1e-6)


@pytest.mark.parametrize("expected", cases("areal", "dpo"))
def test_areal_s_dpo(expected: dict[str, Any]) -> None:
    data = data_of(expected)
    assert data.batch.reference is not None
    zero = torch.zeros_like(data.current)
    loss = dpo(data.current, zero, data.batch.reference, zero, beta=0.1).sum()
    (gradient,) = torch.autograd.grad(loss, data.current)
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-6)
    assert gradient.tolist() == pytest.approx(expected["gradient"], abs=1e-6)


@pytest.mark.parametrize("expected", cases("trl", "kto", "kto_below"))
def test_trl_s_kto(expected: dict[str, Any]) -> None:
    data = data_of(expected)
    batch, count = data.batch, len(data.lengths)
    assert batch.sequences is not None
    assert batch.reference is not None
    good = sequence_sums(batch.advantage, batch.sequences, count) > 0
    current, reference = (sequence_sums(each, batch.sequences, count) for each in (batch.current, batch.reference))
    kl = torch.tensor(0.4 if expected["case"] == "kto" else -0.4)
    loss = kto(current, reference, good, kl, weight_bad=1.5).mean()
    (gradient,) = torch.autograd.grad(loss, data.current)
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-6)
    assert gradient.tolist() == pytest.approx(expected["gradient"], abs=1e-7)


@pytest.mark.filterwarnings("ignore")  # the references warn about their own code
@pytest.mark.parametrize(("name", "package"), [("areal", "areal"), ("trl", "trl"), ("m2po", "verl")])
def test_installed_references_give_the_recorded_results(name: str, package: str) -> None:
    """Call each installed reference and compare it with the stored results."""
    pytest.importorskip(package, reason=f"needs {package}: install it (without it: tests/data/losses)")
    for found, stored in zip(reference_losses.computed(name), every_case(name), strict=True):
        assert found.keys() == stored.keys()
        for key, value in stored.items():
            if key in ("loss", "gradient", "proximal"):
                value = pytest.approx(value, rel=1e-6, abs=1e-9)
            assert found[key] == value, found["case"]


@pytest.mark.parametrize("name", reference_losses.REFERENCES)
def test_every_case_is_stored_by_sequence_and_where_it_can_be_by_step(name: str) -> None:
    stored = {(case["case"], case["credit"]) for case in every_case(name)}
    assert {case for case, credit in stored if credit == "step"} == set(reference_losses.BY_STEP[name])
    assert set(reference_losses.BY_STEP[name]) <= {case for case, credit in stored if credit == "sequence"}
    data = ragged(1, spread=reference_losses.SPREAD, credit="step")
    signs = [set(own.sign().tolist()) for own in data.batch.advantage.split(list(data.lengths))]
    assert {-1.0, 1.0} in signs


@pytest.mark.parametrize("credit", reference_losses.CREDITS)
def test_the_batches_exercise_every_compared_part(credit: Credit) -> None:
    for seed in (1, 2, 3):
        batch = ragged(seed, spread=0.8, credit=credit).batch
        assert AREAL["ppo"].terms(batch).clipped.any()
        assert AREAL["tis"].terms(batch).capped.any()
        assert 0 < int(AREAL["icepop"].terms(batch).rejected.sum()) < batch.current.numel()
        assert AREAL["mask_sequences"].terms(batch).rejected.any()
        assert M2PO["m2po_middle"].terms(batch).clipped.any()
        assert TRL["cispo"][0].terms(batch).clipped.any()
    batches = [ragged(seed, spread=0.8, credit=credit).batch for seed in (1, 2, 3)]
    assert any(TRL["opsm"][0].terms(batch).rejected.any() for batch in batches)
