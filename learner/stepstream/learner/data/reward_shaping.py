"""Decide whether a shaped reward may be trained on, and complete it where a limit cut the trajectory. Pure.

A label with reward potentials pays F_t = γ·Φ(s_{t+1}) - Φ(s_t), with the γ of its reward specification and Φ = 0 after
the last step. Summed with the same γ this is -Φ(s_1), the same for every path from a state (Ng, Harada and Russell,
ICML 1999, theorem 1; their proof needs the γ of the return). Summed with another γ' there remains
Σ_{t>1} γ'^(t-2)·(γ - γ')·Φ(s_t), which depends on the path: the optimum moves. Labels of another γ are not trained on.

Truncated trajectories: a rule that sums paid rewards treats the cut as an end. Φ = 0 is right there, since any other
value would reward being cut in a promising state. A rule that bootstraps adds V(s_T) for the missing steps. Its critic
learns from shaped rewards and estimates V - Φ. With Φ = 0 the last difference would lack γ·Φ(s_T), and the cut would
cost what the state promised. With the last potential restored, F_{T-1} + γ·(V(s_T) - Φ(s_T)) = γ·V(s_T) - Φ(s_{T-1}):
the sum is again that of the unshaped reward less Φ(s_1). Φ after the cut is not measured; the one before replaces it.
Where V̂ is the group's mean return (`step_gae`, `shadow`), it contains paid rewards only. The correction is then
approximate: it is off by the part of the value that V̂ misses.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepstream.config import LearnerSettings
from stepstream.learner.advantages.from_config import rule_without_critic
from stepstream.learner.data.requirements import requirements_of


@dataclass(frozen=True, slots=True)
class Discounting:
    """How a learner sums the rewards of an attempt's steps."""

    discounts: frozenset[float] = frozenset()
    """Every γ, per step, with which it sums them; empty: it sums nothing."""
    bootstraps: bool = False
    """True if it estimates the value that would have followed a cut."""


def discounting_of(config: LearnerSettings) -> Discounting:
    """Return how the configured objective and rule sum rewards: pairs compare whole rewards, other preferences none."""
    requirements = requirements_of(config)
    if not requirements.sampled:
        return Discounting(frozenset({1.0})) if requirements.compares else Discounting()
    rule = rule_without_critic(config)
    return Discounting(rule.discounts, rule.bootstraps)


def apply_shaping(record: Mapping[str, Any], discounting: Discounting) -> Mapping[str, Any] | None:
    """Return a LabeledTrajectory with the rewards that a learner may sum; None if its shaping has another discount.

    Where the trajectory was cut and the learner bootstraps, the last potential is restored in the last step's reward:
    F = -Φ there, so γ·Φ = -γ·F is added. The record's whole reward stays. A label without `gamma` predates that field
    and is returned unchanged, so that versions trained on it can be rebuilt.
    """
    gamma, steps = record["gamma"], record["steps"]
    if gamma is None:
        return record
    if any(gamma != discount for discount in discounting.discounts) and _is_shaped(record):
        return None
    if not discounting.bootstraps or record["end"] != "truncated" or not steps:
        return record
    restored = -gamma * math.fsum(term["value"] * term["weight"] for term in _shaping(steps[-1]))
    if not restored:
        return record
    return {**record, "steps": [*steps[:-1], {**steps[-1], "reward": steps[-1]["reward"] + restored}]}


def _is_shaped(record: Mapping[str, Any]) -> bool:
    return any(term["weight"] for step in record["steps"] for term in _shaping(step))


def _shaping(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [term for term in step["components"] if term["kind"] == "shaping"]
