"""What keeps one component from paying without end, and a broken tool call from paying at all. Pure.

A cap changes no term: it adds one, of kind `guard` and named `cap:…`, so that the label still shows what was measured
and a step's reward stays the weighted sum of its terms. Shaping is never capped, since its sum must stay what it is.
"""

import math
from collections.abc import Sequence

from stepstream.jobs.reward_builtins import malformed_calls
from stepstream.jobs.reward_spec import CORRECTION, Component, RewardSpec
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
        malformed = spec.cap_malformed and (any(told_malformed) or any(map(malformed_calls, steps)))
        _cap_reward(spec.reward_bounds, malformed, terms)
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
                of_step.append(_correction(component.name, correction, term["weight"], "step", term["final"]))
            paid = now_paid


def _cap_reward(bounds: tuple[float, float], malformed: bool, terms: Terms) -> None:
    """Brings the whole reward, shaping aside, into its bounds; with a malformed tool call, to the lower one.

    An honest trajectory gets at least the lower bound, one with a malformed call at most that: whatever the components
    say, a malformed call never scores above an honest failure.
    """
    counted = [term for of_step in terms for term in of_step if term["kind"] != "shaping"]
    reward = math.fsum(term["value"] * term["weight"] for term in counted)
    allowed = min(reward, bounds[0]) if malformed else min(max(reward, bounds[0]), bounds[1])
    if allowed != reward:
        name = "malformed" if malformed else "reward"
        final = all(term["final"] for term in counted)
        terms[-1].append(_correction(name, allowed - reward, 1.0, "trajectory", final))


def _correction(name: str, value: float, weight: float, level: str, final: bool) -> RewardComponent:
    return new_reward_component(
        name=f"{CORRECTION}{name}",
        value=value,
        weight=weight,
        source="format" if name == "malformed" else "policy",
        kind="guard",
        level=level,
        final=final,
        raw_value=value,
    )
