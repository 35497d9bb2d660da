"""The terms of a trajectory's reward by step, their sum, returns and success. Pure.

Shaping. A component with `potential = true` gives Φ(s_t) of each step's state; paid is F_t = γ·Φ(s_{t+1}) - Φ(s_t)
with Φ = 0 after the last step, and with the γ of the return (Ng, Harada and Russell, "Policy invariance under reward
transformations", ICML 1999, theorem 1). Differences are never clipped. So Σ_t γ^t·F_t = -Φ(s_1) whatever the path: the
returns of all trajectories from one state differ by one constant, and the optimum does not move. Where a Φ is not
known it is taken to be that of the step before, at the first step 0.

Φ = 0 after a trajectory that was cut, too: whoever adds up what was paid takes the cut for an end, and a potential
that stayed would pay for being cut in a promising state. A learner that bootstraps there, with V in place of what would
have followed, holds the last Φ itself, and one that adds up with another γ does not train on it: see the learner's
`shaping.py`. Only a learner knows which of these it is, so the label keeps the plain sum, and tells its γ.
"""

from collections.abc import Iterable, Sequence

from stepstream.jobs.rewards.builtin_components import measured, over_steps
from stepstream.jobs.rewards.counted_feedback import CountedFeedback, about_step, newest
from stepstream.jobs.rewards.guards import corrected
from stepstream.jobs.rewards.spec import BUILTIN_SOURCES, Builtin, Component, RewardSpec
from stepstream.topics.events import RewardComponent, Step, new_reward_component

Terms = list[list[RewardComponent]]
"""Terms of the reward, by step."""


def components(spec: RewardSpec, steps: Sequence[Step], evidence: CountedFeedback, *, complete: bool) -> Terms:
    """Every known term of the reward, by step, and what caps and guards correct; what has not come gives no term.

    Args:
        spec: the specification.
        steps: the trajectory's steps in order, at least one.
        evidence: the feedback that counts.
        complete: whether all steps are there, so that what is measured on them is final.
    """
    terms: Terms = [[] for _ in steps]
    told = _told_malformed(steps, evidence)
    for component in spec.component:
        if component.builtin is not None:
            values: list[_Value | None] = _measured(component, component.builtin, steps, told)
            final = complete
        else:
            values = _given(component, steps, evidence)
            final = evidence.final(component)
        if component.potential:
            _shape(component, values, spec.gamma, final and complete, terms)
            continue
        for place, value in enumerate(values):
            if value is not None:
                terms[place].append(_term(component, component.bounded(value.raw), value, final))
    return corrected(spec, steps, terms, told)


def reward_of(terms: Iterable[RewardComponent]) -> float:
    """The weighted sum of a step's terms."""
    return float(sum(term["value"] * term["weight"] for term in terms))


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_t = r_t + gamma · G_{t+1}, over whole steps."""
    returns = [0.0] * len(rewards)
    ahead = 0.0
    for place in range(len(rewards) - 1, -1, -1):
        ahead = rewards[place] + gamma * ahead
        returns[place] = ahead
    return returns


def differences(potentials: Sequence[float], gamma: float) -> list[float]:
    """F_t = gamma · Φ(s_{t+1}) - Φ(s_t), with Φ = 0 after the last step."""
    ahead = [*potentials[1:], 0.0]
    return [gamma * after - before for before, after in zip(potentials, ahead, strict=True)]


def success(spec: RewardSpec, terms: Sequence[Sequence[RewardComponent]]) -> bool | None:
    """Whether the outcome is at its upper bound; None where there is none (yet)."""
    outcome = spec.outcome
    if outcome is None:
        return None
    for term in terms[-1]:
        if term["name"] == outcome.name:
            return term["value"] >= outcome.bounds[1]
    return None


class _Value:
    """A value as it was measured, and by whom."""

    __slots__ = ("feedback_id", "raw", "source")

    def __init__(self, raw: float, source: str, feedback_id: str | None = None) -> None:
        self.raw, self.source, self.feedback_id = raw, source, feedback_id


def _measured(component: Component, name: Builtin, steps: Sequence[Step], told: Sequence[int]) -> list[_Value | None]:
    values = [measured(name, step, count) for step, count in zip(steps, told, strict=True)]
    if component.level == "trajectory":
        values = [*[None] * (len(steps) - 1), over_steps(name, values)]
    return [None if value is None else _Value(value, BUILTIN_SOURCES[name]) for value in values]


def _given(component: Component, steps: Sequence[Step], evidence: CountedFeedback) -> list[_Value | None]:
    signals = evidence.of[component.name]
    if component.level == "trajectory":
        found = [*[None] * (len(steps) - 1), newest(signal for signal in signals if signal["step"] is None)]
    else:
        found = [about_step(signals, step["step_index"]) for step in steps]
    return [None if signal is None else _Value(signal["value"], signal["source"], signal["id"]) for signal in found]


def _shape(component: Component, values: Sequence[_Value | None], gamma: float, final: bool, terms: Terms) -> None:
    """Adds the differences of potentials; none where no potential is known."""
    known = next((value for value in values if value is not None), None)
    if known is None:
        return
    potentials, filled = [0.0], [_Value(0.0, known.source)]
    for value in values:
        potentials.append(potentials[-1] if value is None else component.bounded(value.raw))
        filled.append(_Value(filled[-1].raw, known.source) if value is None else value)
    for place, difference in enumerate(differences(potentials[1:], gamma)):
        terms[place].append(_term(component, difference, filled[1 + place], final))


def _told_malformed(steps: Sequence[Step], evidence: CountedFeedback) -> list[int]:
    """Malformed calls of which feedback told, by step; what is about the whole trajectory counts at its last step."""
    places = {step["step_index"]: place for place, step in enumerate(steps)}
    told = [0] * len(steps)
    for signal in evidence.malformed:
        told[places.get(signal["step"], len(steps) - 1)] += 1
    return told


def _term(component: Component, value: float, measured: _Value, final: bool) -> RewardComponent:
    return new_reward_component(
        name=component.name,
        value=value,
        weight=component.paid_weight,
        source=measured.source,
        feedback_event_id=measured.feedback_id,
        kind=component.kind,
        level=component.level,
        final=final,
        raw_value=measured.raw,
        direction=-1 if component.weight < 0 else 1,
    )
