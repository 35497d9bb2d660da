"""Which feedback counts for which component of a reward: by name, source and the time at which it came. Pure.

Time is the log's: when feedback first came, and when the trajectory was closed. So whether something came too late is
the same in every replay, and history that is imported today is not late for having happened long ago.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from stepstream.jobs.rewards.spec import Component, RewardSpec
from stepstream.topics.trusted_sources import VERDICTS, gives_verdicts, speaks_for

Signal = Mapping[str, Any]
"""What is known of feedback: `id`, `source_id`, `name`, `value`, `step`, `call` (the tool call of that step, where it
is about one), `source`, `producer` (None: not kept yet when it came), `consent`, `retracts`, `at` (occurred_at_us),
`arrived` (log time at which it first came, in milliseconds) and whether it `demonstrates` a response."""


@dataclass(frozen=True, slots=True)
class CountedFeedback:
    """What a reward is made from, beside the steps."""

    of: Mapping[str, Sequence[Signal]]
    """Signals that count, by component, in order of time."""
    disputed: tuple[str, ...]
    """Components that somebody else gave than their declared source."""
    unproven: tuple[str, ...]
    """Names for which somebody spoke as a source that its producer may not speak for."""
    malformed: Sequence[Signal]
    """Signals that tell of malformed tool calls."""
    signals: Sequence[Signal]
    """All of these, those of the wrong source too, in order of time."""
    closed_ms: int
    as_of_ms: int
    """Log time of the newest of all this."""

    def final(self, component: Component) -> bool:
        """Whether no feedback can change a component any more."""
        return component.final_after_s is not None and self.as_of_ms >= _final_ms(component, self.closed_ms)

    def lacking(self, spec: RewardSpec, step_indices: Iterable[int]) -> list[str]:
        """Names of required components that have not come: for the trajectory, or for each of its steps."""
        indices = set(step_indices)
        names = []
        for component in spec.required:
            places = {signal["step"] for signal in self.of[component.name]}
            if not ({None} if component.level == "trajectory" else indices) <= places:
                names.append(component.name)
        return names


def count_feedback(spec: RewardSpec, feedback: Iterable[Signal], closed_ms: int) -> CountedFeedback:
    """What counts of all feedback about a trajectory.

    Args:
        spec: the specification.
        feedback: every signal, with retractions and what they take back.
        closed_ms: log time at which the trajectory was closed.
    """
    known = sorted(feedback, key=lambda signal: (signal["at"], signal["id"]))
    of: dict[str, list[Signal]] = {}
    wrong: dict[str, list[Signal]] = {}
    unproven: dict[str, list[Signal]] = {}
    for component in spec.component:
        if component.feedback is None:
            continue
        named = [s for s in _standing(known, component, closed_ms) if s["name"] == component.feedback]
        right = [s for s in named if component.source in (None, s["source"])]
        wrong[component.name] = [s for s in named if component.source not in (None, s["source"])]
        of[component.name] = [s for s in right if not component.counts or _proven(s)]
        unproven[component.name] = [s for s in right if component.counts and not _proven(s)]
    told = [s for s in _standing(known, None, closed_ms) if s["name"] == spec.malformed_feedback and s["value"] > 0]
    malformed = [s for s in told if _proven(s)]
    unproven.setdefault(spec.malformed_feedback, []).extend(s for s in told if not _proven(s))
    kept = (*of.values(), *wrong.values(), *unproven.values(), malformed)
    used = {signal["id"]: signal for signals in kept for signal in signals}
    return CountedFeedback(
        of=of,
        disputed=tuple(name for name, signals in wrong.items() if signals),
        unproven=tuple(name for name, signals in unproven.items() if signals),
        malformed=malformed,
        signals=sorted(used.values(), key=lambda signal: (signal["at"], signal["id"])),
        closed_ms=closed_ms,
        as_of_ms=max([closed_ms, *(signal["arrived"] for signal in used.values())]),
    )


def newest(signals: Iterable[Signal]) -> Signal | None:
    """The signal that counts where several were given: the newest, by id among equals."""
    return max(signals, key=lambda signal: (signal["at"], signal["id"]), default=None)


def about_step(signals: Iterable[Signal], index: int) -> Signal | None:
    """What counts about a step: the newest about all of it; else, of its tool calls, the mean of the newest of each."""
    about = sorted((s for s in signals if s["step"] == index), key=lambda signal: (signal["at"], signal["id"]))
    whole = [signal for signal in about if signal.get("call") is None]
    if whole or not about:
        return newest(whole)
    of_call = {signal["call"]: signal["value"] for signal in about}
    return {**about[-1], "value": fmean(of_call.values())}


def not_taken_back(signals: Sequence[Signal]) -> list[Signal]:
    """The signals that none of them retracts, in the same order; only who gives verdicts may take one back."""
    retractions: dict[str, list[Signal]] = {}
    for signal in signals:
        if signal["retracts"] is not None:
            retractions.setdefault(signal["retracts"], []).append(signal)

    def taken_back(signal: Signal) -> bool:
        about = [r for known_as in {signal["id"], signal["source_id"]} for r in retractions.get(known_as, ())]
        return any(_may_take_back(retraction, signal) for retraction in about)

    return [signal for signal in signals if not taken_back(signal)]


def too_late(spec: RewardSpec, signal: Signal, closed_ms: int) -> bool:
    """Whether a signal is about components of the reward and came after all of them were final."""
    about = [component for component in spec.component if component.feedback == signal["name"]]
    return bool(about) and not any(_in_time(signal, component, closed_ms) for component in about)


def _standing(known: Sequence[Signal], component: Component | None, closed_ms: int) -> list[Signal]:
    """Signals with a value that came in time for a component and that nothing in time took back."""
    came = [signal for signal in known if component is None or _in_time(signal, component, closed_ms)]
    return [signal for signal in not_taken_back(came) if signal["value"] is not None]


def _proven(signal: Signal) -> bool:
    """Whether its producer may speak for its source. What came before producers were kept counts as it did then."""
    return (
        signal["source"] not in VERDICTS
        or signal["producer"] is None
        or speaks_for(signal["producer"], signal["source"])
    )


def _may_take_back(retraction: Signal, signal: Signal) -> bool:
    return (
        signal["source"] not in VERDICTS
        or not _proven(signal)
        or retraction["producer"] is None
        or gives_verdicts(retraction["producer"])
    )


def _in_time(signal: Signal, component: Component, closed_ms: int) -> bool:
    return component.final_after_s is None or signal["arrived"] <= _final_ms(component, closed_ms)


def _final_ms(component: Component, closed_ms: int) -> float:
    return closed_ms + (component.final_after_s or 0.0) * 1000
