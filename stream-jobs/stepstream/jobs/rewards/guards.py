"""Limit what one component can pay, and what a malformed tool call can pay. Pure.

A cap changes no term. It adds a term of kind `guard`, named `cap:…`: the label still shows the measured values, and a
step's reward stays the weighted sum of its terms. Shaping is never capped, because its sum must not change.

A cap corrects at the step where the running sum passes a bound, never later. So it also holds for discounted returns:
with C_t = Σ_{k≤t} r_k, summation by parts gives

    G_0 = Σ_t γ^t·r_t = Σ_{t<T} (γ^t - γ^(t+1))·C_t + γ^T·C_T

with weights that are at least 0 and add up to 1. Bounds of all running sums therefore bound G_0 for any γ in [0, 1].
"""

import math
from collections.abc import Sequence

from stepstream.jobs.rewards.builtin_components import count_malformed_calls
from stepstream.jobs.rewards.spec import CORRECTION, Component, RewardSpec
from stepstream.topics.events import RewardComponent, Step, new_reward_component

Terms = list[list[RewardComponent]]


def apply_guards(spec: RewardSpec, steps: Sequence[Step], terms: Terms, reported_malformed: Sequence[int]) -> Terms:
    """Add the corrections to the terms; return them.

    Args:
        spec: the reward specification.
        steps: the trajectory's steps.
        terms: terms by step.
        reported_malformed: malformed calls that feedback reports, by step.
    """
    for component in spec.component:
        if component.trajectory_bounds is not None and component.paid_weight:
            _cap_running_sum(component, component.trajectory_bounds, terms)
    if spec.reward_bounds is not None:
        broken = [
            position
            for position, step in enumerate(steps)
            if reported_malformed[position] or count_malformed_calls(step)
        ]
        rewards = [_unshaped_reward(of_step) for of_step in terms]
        if spec.cap_malformed and broken:
            _add_corrections("malformed", terms, _corrections_for_malformed(rewards, spec.reward_bounds[0], broken[-1]))
        else:
            _add_corrections("reward", terms, _corrections_into_bounds(rewards, spec.reward_bounds))
    return terms


def _cap_running_sum(component: Component, bounds: tuple[float, float], terms: Terms) -> None:
    """Add a correction at each step where a component's running sum passes its bounds."""
    total = paid = 0.0
    for of_step in terms:
        for term in [term for term in of_step if term["name"] == component.name]:
            total += term["value"]
            now_paid = min(max(total, bounds[0]), bounds[1])
            correction = (now_paid - paid) - term["value"]
            if correction:
                of_step.append(_correction(component.name, correction, term["weight"], term["final"]))
            paid = now_paid


def _corrections_into_bounds(rewards: Sequence[float], bounds: tuple[float, float]) -> list[float]:
    """Return the corrections that keep the running sum of the rewards inside the bounds.

    Before the last step, 0 is inside too: a lower bound above 0, or an upper one below it, is enforced at the last
    step.
    """
    low, high = bounds
    total = paid = 0.0
    corrections = []
    for position, reward in enumerate(rewards):
        before, total = total, total + reward
        last = position == len(rewards) - 1
        now_paid = min(max(total, low if last else min(low, 0.0)), high if last else max(high, 0.0))
        inside = (paid, now_paid) == (before, total)  # compare sums: their difference has a rounding error
        corrections.append(0.0 if inside else (now_paid - paid) - reward)
        paid = now_paid
    return corrections


def _corrections_for_malformed(rewards: Sequence[float], low: float, broken: int) -> list[float]:
    """Return the corrections of a trajectory with a malformed tool call.

    What a step was paid is taken back at that step, and what is missing to the lower bound at the last malformed call.
    Then no step is paid more than 0 and all together at most the lower bound, an honest trajectory at least that. And
    for any γ in (0, 1], with P_t paid before step t of T + 1: G_t ≤ γ^(T-t)·(low - P_t). So from no step on is it worth
    more than a failure of the same length that lost as much before and is paid the rest of the lower bound at its end.
    """
    corrections = [-max(reward, 0.0) for reward in rewards]
    lost = math.fsum(min(reward, 0.0) for reward in rewards)
    corrections[broken] += min(low - lost, 0.0)
    return corrections


def _add_corrections(name: str, terms: Terms, corrections: Sequence[float]) -> None:
    final = all(term["final"] for of_step in terms for term in of_step if term["kind"] != "shaping")
    for of_step, correction in zip(terms, corrections, strict=True):
        if correction:
            of_step.append(_correction(name, correction, 1.0, final))


def _unshaped_reward(of_step: Sequence[RewardComponent]) -> float:
    """Return a step's reward without shaping."""
    return math.fsum(term["value"] * term["weight"] for term in of_step if term["kind"] != "shaping")


def _correction(name: str, value: float, weight: float, final: bool) -> RewardComponent:
    return new_reward_component(
        name=f"{CORRECTION}{name}",
        value=value,
        weight=weight,
        source="format" if name == "malformed" else "policy",
        kind="guard",
        level="step",
        final=final,
        raw_value=value,
    )
