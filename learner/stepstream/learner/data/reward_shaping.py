"""What a learner may make of a reward that potentials shape: whether their differences leave its optimum alone. Pure.

A label pays F_t = γ·Φ(s_{t+1}) - Φ(s_t) with the γ of its reward specification and Φ = 0 after the last step. Added up
with the same γ this is -Φ(s_1), the same for every path from a state (Ng, Harada and Russell, ICML 1999, theorem 1;
their proof needs the γ of the return). Added up with another γ' there remains Σ_{t>1} γ'^(t-2)·(γ - γ')·Φ(s_t), which
depends on the path: the optimum moves. So such a label is not trained on.

Cut trajectories. Where a limit ended it, a rule that adds up what was paid takes the cut for an end, and Φ = 0 there is
right: any other value would pay for being cut in a promising state. A rule that bootstraps goes on with V(s_T) in place
of what would have followed. Its critic learns from shaped rewards and so finds V - Φ; with Φ = 0 the last difference
would lack γ·Φ(s_T), and being cut would cost what the state promised. With the potential held,
F_{T-1} + γ·(V(s_T) - Φ(s_T)) = γ·V(s_T) - Φ(s_{T-1}), and the sum is that of the unshaped reward less Φ(s_1) again. Φ
after the cut is not measured: as anywhere, the one before stands in. Where V̂ is the group's mean return (`step_gae`,
`shadow`), it knows what was paid alone; there this is the nearest that there is, and off by what V̂ does not know.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepstream.config import LearnerSettings
from stepstream.learner.advantages.from_record import described
from stepstream.learner.data.requirements import requirements_of


@dataclass(frozen=True, slots=True)
class Sums:
    """How a learner adds up the rewards of an attempt's steps."""

    discounts: frozenset[float] = frozenset()
    """Every γ, from step to step, with which it does; none: it adds up nothing."""
    bootstraps: bool = False
    """Whether it values what would have followed where an attempt was cut."""


def sums_of(config: LearnerSettings) -> Sums:
    """Of what the settings choose: pairs compare whole rewards, other preferences none."""
    needs = requirements_of(config)
    if not needs.sampled:
        return Sums(frozenset({1.0})) if needs.compares else Sums()
    rule = described(config)
    return Sums(rule.discounts, rule.bootstraps)


def misshaped(record: Mapping[str, Any], sums: Sums) -> bool:
    """Whether a LabeledTrajectory is shaped for another discount than one of these.

    A label from before labels told their γ is taken as it was then: else what was trained on it could not be rebuilt.
    """
    gamma = record["gamma"]
    return gamma is not None and any(gamma != discount for discount in sums.discounts) and _is_shaped(record)


def held(record: Mapping[str, Any], sums: Sums) -> Mapping[str, Any]:
    """The record with, where it was cut and the learner bootstraps, the last potential held in its last step's reward.

    Its whole reward stays. F = -Φ there, so that what is to be added, γ·Φ, is -γ·F.
    """
    gamma, steps = record["gamma"], record["steps"]
    if not sums.bootstraps or gamma is None or record["end"] != "truncated" or not steps:
        return record
    back = -gamma * math.fsum(term["value"] * term["weight"] for term in _shaping(steps[-1]))
    return {**record, "steps": [*steps[:-1], {**steps[-1], "reward": steps[-1]["reward"] + back}]} if back else record


def _is_shaped(record: Mapping[str, Any]) -> bool:
    return any(term["weight"] for step in record["steps"] for term in _shaping(step))


def _shaping(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [term for term in step["components"] if term["kind"] == "shaping"]
