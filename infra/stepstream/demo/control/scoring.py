"""Judge the decisions of a run against what happened: right levers, undone faults, false actions, delays. Pure.

A decision is right for an event if it is one that the event calls for and came between the event and the next one.
The rollback of a poisoned checkpoint must follow a canary or promotion of that version: other versions are taken back
too. A decision is false if nothing that has happened so far calls for it, or if it falls into the quiet stretch.
Decisions to hold are neither.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepstream.demo.control.timeline import BAD, EVENTS, Kind, Occurrence
from stepstream.topics.events import Decision

_REMEDIES: dict[Kind, frozenset[tuple[str, str]]] = {
    "tool_breaks": frozenset({("tools", "disable"), ("tools", "rollback")}),
    "better_examples": frozenset({("prompt", "promote"), ("skills", "promote")}),
    "weights_can_learn": frozenset({("weights", "promote")}),
    "poisoned_checkpoint": frozenset({("weights", "rollback")}),
    "gameable_reward": frozenset({("weights", "pause")}),
    "quiet": frozenset(),
}
"""Lever and action that answer an event."""
_STEPS: dict[Kind, frozenset[tuple[str, str]]] = {
    "tool_breaks": frozenset(),
    "better_examples": frozenset(
        (lever, action) for lever in ("prompt", "skills") for action in ("propose", "canary", "widen", "rollback")
    ),
    "weights_can_learn": frozenset({("weights", action) for action in ("train", "canary", "widen", "rollback")}),
    "poisoned_checkpoint": frozenset({("weights", "canary"), ("weights", "widen")}),
    "gameable_reward": frozenset({("weights", action) for action in ("train", "canary", "widen", "rollback")}),
    "quiet": frozenset(),
}
"""Decisions that an event also calls for: a trial before a promotion, and its end without one."""
_AFTERWARDS: dict[Kind, frozenset[tuple[str, str]]] = {"gameable_reward": _STEPS["gameable_reward"]}
"""Decisions that the end of an event calls for: learning resumes once the reward is repaired, also on what the repaired
one labels again, and its versions are tried."""
_LASTING: frozenset[Kind] = frozenset({"better_examples", "weights_can_learn"})
"""Events that go on to call for decisions: better versions keep coming."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement of one event."""

    occurrence: Occurrence
    decision: Decision | None
    """The first right decision; None: there was none."""

    @property
    def delay_s(self) -> float | None:
        """Seconds from the event to the decision; None: there was none."""
        if self.decision is None:
            return None
        return (self.decision["occurred_at_us"] - self.occurrence.began_us) / 1e6


@dataclass(frozen=True, slots=True)
class Score:
    """Judgement of a run."""

    verdicts: tuple[Verdict, ...]
    """One for each event, in the order in which they happened."""
    false_actions: tuple[Decision, ...]
    undone: int
    """Bad events whose effect was taken back."""

    @property
    def right_levers(self) -> int:
        """Events that were answered by the right lever."""
        return sum(verdict.decision is not None for verdict in self.verdicts)


def judge(occurrences: Sequence[Occurrence], decisions: Iterable[Decision], undone_kinds: Iterable[Kind]) -> Score:
    """Judge a run.

    Args:
        occurrences: what happened, in order of time; the stretches do not overlap.
        decisions: the decisions about the agent that were carried out, in order of time.
        undone_kinds: bad events whose effect was gone at the end of their stretch, as the topics say.
    """
    pulled = [one for one in decisions if one["action"] != "hold"]
    events = [one for one in occurrences if one.kind in EVENTS]
    verdicts = tuple(Verdict(one, first_right(one, pulled)) for one in events)
    false = tuple(one for one in pulled if not is_justified(occurrences, one))
    answered = {verdict.occurrence.kind for verdict in verdicts if verdict.decision is not None}
    return Score(verdicts, false, len(answered & set(undone_kinds) & set(BAD)))


def first_right(event: Occurrence, decisions: Iterable[Decision]) -> Decision | None:
    """Return the first decision that answers an event; None: there is none. Decisions are in order of time."""
    newest_weights = ""
    for one in decisions:
        if _is_right(event, one) and (event.kind != "poisoned_checkpoint" or newest_weights == event.subject):
            return one
        if one["lever"] == "weights" and one["action"] in ("canary", "promote"):
            newest_weights = one["target"]
    return None


def _is_right(event: Occurrence, decision: Decision) -> bool:
    """Return True if a decision answers an event by its time, lever, action and target."""
    in_time = event.began_us <= decision["occurred_at_us"] < event.ended_us
    return in_time and _pull(decision) in _REMEDIES[event.kind] and _is_about(event, decision)


def is_justified(occurrences: Sequence[Occurrence], decision: Decision) -> bool:
    """Return True if something that has happened calls for a decision, and it is not in the quiet stretch."""
    at = decision["occurred_at_us"]
    for one in occurrences:
        is_current = one.began_us <= at < one.ended_us
        if one.kind == "quiet" and is_current:
            return False
    return any(
        one.began_us <= at
        and (at < one.ended_us or one.kind in _LASTING or _pull(decision) in _AFTERWARDS.get(one.kind, ()))
        and (_is_right(one, decision) or _pull(decision) in _STEPS[one.kind] or _is_lasting_remedy(one, decision))
        for one in occurrences
    )


def _is_lasting_remedy(event: Occurrence, decision: Decision) -> bool:
    return event.kind in _LASTING and _pull(decision) in _REMEDIES[event.kind]


def _pull(decision: Decision) -> tuple[str, str]:
    return decision["lever"] or "", decision["action"]


def _is_about(event: Occurrence, decision: Decision) -> bool:
    """Return True if the decision names what the event happened to.

    A tool is the target itself, with or without a version.
    """
    if event.kind == "tool_breaks":
        return decision["target"].split("@")[0] == event.subject
    if event.kind == "better_examples" and event.subject:
        return decision["target"] == event.subject
    return True
