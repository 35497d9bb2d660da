"""Select the feedback that counts for each component of a reward, by name, source and arrival time. Pure.

Times are log times: when feedback first came, and when the trajectory closed. So every replay finds the same feedback
late, and imported history is not late because it is old.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from stepstream.jobs.rewards.spec import Component, RewardSpec
from stepstream.topics.trusted_sources import is_of_source, is_restricted, may_give_verdicts, may_report

Signal = Mapping[str, Any]
"""Feedback as a mapping: `id`, `source_id`, `name`, `value`, `step`, `call` (tool call of that step; None: the whole
step), `source`, `producer` (None: saved by a release without producers), `consent`, `retracts`, `at` (occurred_at_us),
`arrived` (log time of its first event, ms), and `demonstrates` (True: it has a demonstration).
"""


@dataclass(frozen=True, slots=True)
class CountedFeedback:
    """Input of a reward, beside the steps."""

    by_component: Mapping[str, Sequence[Signal]]
    """Signals that count, by component, in order of time."""
    wrong_source: tuple[str, ...]
    """Components with feedback of another source than the declared one."""
    unproven_source: tuple[str, ...]
    """Names of feedback whose producer may not speak for the source that it names."""
    malformed: Sequence[Signal]
    """Signals that report malformed tool calls."""
    signals: Sequence[Signal]
    """All of these signals and those of a wrong source, in order of time."""
    closed_ms: int
    as_of_ms: int
    """Log time of the newest of them, or of the closure."""

    def is_final(self, component: Component) -> bool:
        """Return True if no feedback can change a component any more."""
        return component.final_after_s is not None and self.as_of_ms >= _final_ms(component, self.closed_ms)

    def missing(self, spec: RewardSpec, step_indices: Iterable[int]) -> list[str]:
        """Return the required components without feedback: for the trajectory, or for one of its steps."""
        indices = set(step_indices)
        names = []
        for component in spec.required:
            places = {signal["step"] for signal in self.by_component[component.name]}
            if not ({None} if component.level == "trajectory" else indices) <= places:
                names.append(component.name)
        return names


def count_feedback(spec: RewardSpec, feedback: Iterable[Signal], closed_ms: int) -> CountedFeedback:
    """Select the signals that count.

    Args:
        spec: the reward specification.
        feedback: all signals about a trajectory, with retractions and retracted ones.
        closed_ms: log time at which the trajectory closed.
    """
    ordered = sorted(feedback, key=lambda signal: (signal["at"], signal["id"]))
    by_component: dict[str, list[Signal]] = {}
    wrong: dict[str, list[Signal]] = {}
    unproven_source: dict[str, list[Signal]] = {}
    for component in spec.component:
        if component.feedback is None:
            continue
        named = [s for s in _valid_signals(ordered, component, closed_ms) if s["name"] == component.feedback]
        right = [s for s in named if is_of_source(s["source"], component.source)]
        wrong[component.name] = [s for s in named if not is_of_source(s["source"], component.source)]
        by_component[component.name] = [s for s in right if not component.counts or _has_proven_source(s)]
        unproven_source[component.name] = [s for s in right if component.counts and not _has_proven_source(s)]
    reported = [
        s for s in _valid_signals(ordered, None, closed_ms) if s["name"] == spec.malformed_feedback and s["value"] > 0
    ]
    malformed = [s for s in reported if _has_proven_source(s)]
    unproven_source.setdefault(spec.malformed_feedback, []).extend(s for s in reported if not _has_proven_source(s))
    selected = (*by_component.values(), *wrong.values(), *unproven_source.values(), malformed)
    used = {signal["id"]: signal for signals in selected for signal in signals}
    return CountedFeedback(
        by_component=by_component,
        wrong_source=tuple(name for name, signals in wrong.items() if signals),
        unproven_source=tuple(name for name, signals in unproven_source.items() if signals),
        malformed=malformed,
        signals=sorted(used.values(), key=lambda signal: (signal["at"], signal["id"])),
        closed_ms=closed_ms,
        as_of_ms=max([closed_ms, *(signal["arrived"] for signal in used.values())]),
    )


def newest(signals: Iterable[Signal]) -> Signal | None:
    """Return the newest signal, by id among equals; None: there is none."""
    return max(signals, key=lambda signal: (signal["at"], signal["id"]), default=None)


def feedback_about_step(signals: Iterable[Signal]) -> Signal | None:
    """Return the newest of a step's signals about the whole step; else the mean over its tool calls of their newest."""
    about = sorted(signals, key=lambda signal: (signal["at"], signal["id"]))
    whole = [signal for signal in about if signal.get("call") is None]
    if whole or not about:
        return newest(whole)
    of_call = {signal["call"]: signal["value"] for signal in about}
    return {**about[-1], "value": fmean(of_call.values())}


def unretracted(signals: Sequence[Signal]) -> list[Signal]:
    """Return the signals that no other retracts, in order. Only a producer of verdicts may retract a verdict."""
    retractions: dict[str, list[Signal]] = {}
    for signal in signals:
        if signal["retracts"] is not None:
            retractions.setdefault(signal["retracts"], []).append(signal)

    def is_retracted(signal: Signal) -> bool:
        about = [r for known_as in {signal["id"], signal["source_id"]} for r in retractions.get(known_as, ())]
        return any(_may_retract(retraction, signal) for retraction in about)

    return [signal for signal in signals if not is_retracted(signal)]


def is_too_late(spec: RewardSpec, signal: Signal, closed_ms: int) -> bool:
    """Return True if a signal names components of the reward and came after all of them were final."""
    about = [component for component in spec.component if component.feedback == signal["name"]]
    return bool(about) and not any(_is_in_time(signal, component, closed_ms) for component in about)


def _valid_signals(ordered: Sequence[Signal], component: Component | None, closed_ms: int) -> list[Signal]:
    """Return the signals with a value that came in time for a component and that no signal in time retracts."""
    in_time = [signal for signal in ordered if component is None or _is_in_time(signal, component, closed_ms)]
    return [signal for signal in unretracted(in_time) if signal["value"] is not None]


def _has_proven_source(signal: Signal) -> bool:
    """Return True if its producer may speak for its source. Signals without a saved producer are trusted."""
    return (
        not is_restricted(signal["source"])
        or signal["producer"] is None
        or may_report(signal["producer"], signal["source"])
    )


def _may_retract(retraction: Signal, signal: Signal) -> bool:
    return (
        not is_restricted(signal["source"])
        or not _has_proven_source(signal)
        or retraction["producer"] is None
        or may_give_verdicts(retraction["producer"])
    )


def _is_in_time(signal: Signal, component: Component, closed_ms: int) -> bool:
    return component.final_after_s is None or signal["arrived"] <= _final_ms(component, closed_ms)


def _final_ms(component: Component, closed_ms: int) -> float:
    return closed_ms + (component.final_after_s or 0.0) * 1000
