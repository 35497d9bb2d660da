"""What keeps one component from paying without end, and a broken tool call from paying at all. Pure.

A cap changes no term: it adds one, of kind `guard` and named `cap:…`, so that the label still shows what was measured
and a step's reward stays the weighted sum of its terms. Shaping is never capped, since its sum must stay what it is.

A cap corrects at the step where something passes it, never later. So it holds for discounted returns as well: with
C_t = Σ_{k≤t} r_k, summation by parts gives

    G_0 = Σ_t γ^t·r_t = Σ_{t<T} (γ^t - γ^(t+1))·C_t + γ^T·C_T

with weights that are at least 0 and add up to 1, and what bounds all running sums bounds G_0 for any γ in [0, 1].
"""

import math
from collections.abc import Sequence

from stepstream.jobs.rewards.builtin_components import malformed_calls
from stepstream.jobs.rewards.spec import CORRECTION, Component, RewardSpec
from stepstream.topics.events import RewardComponent, Step, new_reward_component

Terms = list[list[RewardComponent]]


def corrected(spec: RewardSpec, steps: Sequence[Step], terms: Terms, told_malformed: Sequence[int]) -> Terms:
    """The terms with their corrections.

    Args:
        spec: the specification.
        steps: the trajectory's steps.
        terms: terms by step.
        told_malformed: malformed calls of which feedback told, by step.
    """
    for component in spec.component:
        if component.trajectory_bounds is not None and component.paid_weight:
            _cap_sum(component, component.trajectory_bounds, terms)
    if spec.reward_bounds is not None:
        broken = [place for place, step in enumerate(steps) if told_malformed[place] or malformed_calls(step)]
        rewards = [_reward(of_step) for of_step in terms]
        if spec.cap_malformed and broken:
            _correct("malformed", terms, _taken_back(rewards, spec.reward_bounds[0], broken[-1]))
        else:
            _correct("reward", terms, _kept_inside(rewards, spec.reward_bounds))
    return terms


def _cap_sum(component: Component, bounds: tuple[float, float], terms: Terms) -> None:
    """Takes back, at the step where it passes, what passes the bounds of a component's running sum."""
    total = paid = 0.0
    for of_step in terms:
        for term in [term for term in of_step if term["name"] == component.name]:
            total += term["value"]
            now_paid = min(max(total, bounds[0]), bounds[1])
            correction = (now_paid - paid) - term["value"]
            if correction:
                of_step.append(_correction(component.name, correction, term["weight"], term["final"]))
            paid = now_paid


def _kept_inside(rewards: Sequence[float], bounds: tuple[float, float]) -> list[float]:
    """What to add to each step's reward so that their running sum stays inside the bounds.

    On the way 0 is inside too: a lower bound above 0, or an upper one below it, is reached at the last step.
    """
    low, high = bounds
    total = paid = 0.0
    corrections = []
    for place, reward in enumerate(rewards):
        before, total = total, total + reward
        last = place == len(rewards) - 1
        now_paid = min(max(total, low if last else min(low, 0.0)), high if last else max(high, 0.0))
        inside = (paid, now_paid) == (before, total)  # told apart, for a difference of sums has rounding in it
        corrections.append(0.0 if inside else (now_paid - paid) - reward)
        paid = now_paid
    return corrections


def _taken_back(rewards: Sequence[float], low: float, broken: int) -> list[float]:
    """What to add to each step's reward where a tool call was malformed.

    What a step was paid is taken back at that step, and what is missing to the lower bound at the last malformed call.
    Then no step is paid more than 0 and all together at most the lower bound, an honest trajectory at least that. And
    for any γ in (0, 1], with P_t paid before step t of T + 1: G_t ≤ γ^(T-t)·(low - P_t). So from no step on is it worth
    more than a failure of the same length that lost as much before and is paid the rest of the lower bound at its end.
    """
    corrections = [-max(reward, 0.0) for reward in rewards]
    lost = math.fsum(min(reward, 0.0) for reward in rewards)
    corrections[broken] += min(low - lost, 0.0)
    return corrections


def _correct(name: str, terms: Terms, corrections: Sequence[float]) -> None:
    final = all(term["final"] for of_step in terms for term in of_step if term["kind"] != "shaping")
    for of_step, correction in zip(terms, corrections, strict=True):
        if correction:
            of_step.append(_correction(name, correction, 1.0, final))


def _reward(of_step: Sequence[RewardComponent]) -> float:
    """A step's reward, shaping aside."""
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
