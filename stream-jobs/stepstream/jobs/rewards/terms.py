"""Compute the terms of a trajectory's reward by step, their sum, returns and success. Pure.

Shaping. A component with `potential = true` gives Φ(s_t) of each step's state. It pays F_t = γ·Φ(s_{t+1}) - Φ(s_t) with
Φ = 0 after the last step, and with the γ of the return (Ng, Harada and Russell, "Policy invariance under reward
transformations", ICML 1999, theorem 1). Differences are never clipped. So Σ_t γ^t·F_t = -Φ(s_1) on every path: the
returns of all trajectories from one state differ by one constant, and the optimal policy does not change. An unknown Φ
is that of the previous step, and 0 at the first step.

Φ is 0 after a truncated trajectory too. A reader that sums the rewards takes the truncation for an end, and a remaining
potential would pay for truncation in a promising state. Two kinds of learner need something else: one that bootstraps
adds the last Φ itself, and one with another γ does not train on the shaping (see the learner's
`data/reward_shaping.py`). Only the learner knows which case applies, so the label has the plain sum and its γ.
"""

from collections.abc import Iterable, Sequence

from stepstream.jobs.rewards.builtin_components import aggregate_steps, measure
from stepstream.jobs.rewards.counted_feedback import CountedFeedback, Signal, feedback_about_step, newest
from stepstream.jobs.rewards.guards import apply_guards
from stepstream.jobs.rewards.spec import BUILTIN_SOURCES, Builtin, Component, RewardSpec
from stepstream.topics.events import RewardComponent, Step, new_reward_component

Terms = list[list[RewardComponent]]
"""Terms of the reward, by step."""


def components(spec: RewardSpec, steps: Sequence[Step], counted: CountedFeedback, *, complete: bool) -> Terms:
    """Return every known term of the reward, by step, with the corrections of caps and guards.

    Args:
        spec: the reward specification.
        steps: the trajectory's steps in order, at least one.
        counted: feedback that counts.
        complete: True if all steps are there, so that values measured on them are final.
    """
    terms: Terms = [[] for _ in steps]
    reported = _count_reported_malformed(steps, counted)
    for component in spec.component:
        if component.builtin is not None:
            values: list[_Measurement | None] = _measure_builtin(component, component.builtin, steps, reported)
            final = complete
        else:
            values = _read_feedback(component, steps, counted)
            final = counted.is_final(component)
        if component.potential:
            _add_shaping(component, values, spec.gamma, final and complete, terms)
            continue
        for position, value in enumerate(values):
            if value is not None:
                terms[position].append(_term(component, component.bounded(value.raw), value, final))
    return apply_guards(spec, steps, terms, reported)


def reward_of(terms: Iterable[RewardComponent]) -> float:
    """Return the weighted sum of a step's terms."""
    return float(sum(term["value"] * term["weight"] for term in terms))


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return G_t = r_t + gamma · G_{t+1}, over whole steps."""
    returns = [0.0] * len(rewards)
    ahead = 0.0
    for position in range(len(rewards) - 1, -1, -1):
        ahead = rewards[position] + gamma * ahead
        returns[position] = ahead
    return returns


def shaping_rewards(potentials: Sequence[float], gamma: float) -> list[float]:
    """Return F_t = gamma · Φ(s_{t+1}) - Φ(s_t), with Φ = 0 after the last step."""
    ahead = [*potentials[1:], 0.0]
    return [gamma * after - before for before, after in zip(potentials, ahead, strict=True)]


def success(spec: RewardSpec, terms: Sequence[Sequence[RewardComponent]]) -> bool | None:
    """Return True if the outcome is at its upper bound; None: there is no outcome (yet)."""
    outcome = spec.outcome
    if outcome is None:
        return None
    for term in terms[-1]:
        if term["name"] == outcome.name:
            return term["value"] >= outcome.bounds[1]
    return None


class _Measurement:
    """Value before bounds, with its source."""

    __slots__ = ("feedback_id", "raw", "source")

    def __init__(self, raw: float, source: str, feedback_id: str | None = None) -> None:
        self.raw, self.source, self.feedback_id = raw, source, feedback_id


def _measure_builtin(
    component: Component, name: Builtin, steps: Sequence[Step], reported: Sequence[int]
) -> list[_Measurement | None]:
    values = [measure(name, step, count) for step, count in zip(steps, reported, strict=True)]
    if component.level == "trajectory":
        values = [*[None] * (len(steps) - 1), aggregate_steps(name, values)]
    return [None if value is None else _Measurement(value, BUILTIN_SOURCES[name]) for value in values]


def _read_feedback(component: Component, steps: Sequence[Step], counted: CountedFeedback) -> list[_Measurement | None]:
    signals = counted.by_component[component.name]
    if component.level == "trajectory":
        chosen = [*[None] * (len(steps) - 1), newest(signal for signal in signals if signal["step"] is None)]
    else:
        of_step: dict[int | None, list[Signal]] = {}
        for signal in signals:
            of_step.setdefault(signal["step"], []).append(signal)
        chosen = [feedback_about_step(of_step.get(step["step_index"], ())) for step in steps]
    return [
        None if signal is None else _Measurement(signal["value"], signal["source"], signal["id"]) for signal in chosen
    ]


def _add_shaping(
    component: Component, values: Sequence[_Measurement | None], gamma: float, final: bool, terms: Terms
) -> None:
    """Add the differences of potentials, unless no potential is known."""
    known = next((value for value in values if value is not None), None)
    if known is None:
        return
    potentials, filled = [0.0], [_Measurement(0.0, known.source)]
    for value in values:
        potentials.append(potentials[-1] if value is None else component.bounded(value.raw))
        filled.append(_Measurement(filled[-1].raw, known.source) if value is None else value)
    for position, difference in enumerate(shaping_rewards(potentials[1:], gamma)):
        terms[position].append(_term(component, difference, filled[1 + position], final))


def _count_reported_malformed(steps: Sequence[Step], counted: CountedFeedback) -> list[int]:
    """Count the malformed calls that feedback reports, by step; a signal without a step counts for the last."""
    positions = {step["step_index"]: position for position, step in enumerate(steps)}
    reported = [0] * len(steps)
    for signal in counted.malformed:
        reported[positions.get(signal["step"], len(steps) - 1)] += 1
    return reported


def _term(component: Component, value: float, measurement: _Measurement, final: bool) -> RewardComponent:
    return new_reward_component(
        name=component.name,
        value=value,
        weight=component.paid_weight,
        source=measurement.source,
        feedback_event_id=measurement.feedback_id,
        kind=component.kind,
        level=component.level,
        final=final,
        raw_value=measurement.raw,
        direction=-1 if component.weight < 0 else 1,
    )
