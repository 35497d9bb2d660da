"""Which demonstration counts for which step: what the agent should have said there, as feedback tells it. Pure.

The rule is that of the reward's feedback: of what nothing took back, the newest that may be used counts. What is about
the whole trajectory is about its last response.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stepstream.jobs.rewards.counted_feedback import Signal, not_taken_back
from stepstream.topics.events import Feedback, Step
from stepstream.topics.step_contexts import failed
from stepstream.topics.trusted_sources import speaks_for


@dataclass(frozen=True, slots=True)
class Demonstrated:
    """What counts, and why some does not."""

    of: Mapping[int, Feedback]
    """The feedback whose demonstration counts, by index of the step."""
    faults: tuple[str, ...]
    """Why demonstrations are left out, each reason once, sorted."""


def standing_demonstrations(feedback: Iterable[Signal]) -> list[Signal]:
    """The signals with a demonstration that nothing took back, in order of time."""
    known = sorted(feedback, key=lambda signal: (signal["at"], signal["id"]))
    return [signal for signal in not_taken_back(known) if signal["demonstrates"]]


def demonstrated(steps: Sequence[Step], given: Iterable[Feedback], persons: Collection[str]) -> Demonstrated:
    """Gives each step the newest demonstration for it that may be trained on.

    Args:
        steps: the trajectory's steps in order, at least one.
        given: governed feedback with demonstrations that nothing took back, in any order.
        persons: those under whose keys the label is sealed. A demonstration in another person's name is left out: it
            would outlive that person's erasure.
    """
    indices = {step["step_index"] for step in steps}
    last = next((step for step in reversed(steps) if not failed(step)), steps[-1])["step_index"]
    of: dict[int, Feedback] = {}
    faults = set()
    for feedback in sorted(given, key=lambda each: (each["occurred_at_us"], each["event_id"])):
        index = last if feedback["step_index"] is None else feedback["step_index"]
        fault = "no_step" if index not in indices else _fault(feedback, persons)
        if fault:
            faults.add(fault)
        else:
            of[index] = feedback
    return Demonstrated(of, tuple(sorted(faults)))


def _fault(feedback: Feedback, persons: Collection[str]) -> str:
    """Why a demonstration may not be used, in a word; empty where it may."""
    if feedback["consent"] != "train":
        return "consent"
    if feedback["governed"] is None or not feedback["governed"]["trainable"]:
        return "redacted"  # it would teach to say pseudonyms
    if not speaks_for(feedback["producer"], feedback["source"]):
        return "unproven"
    if feedback["tool_call_id"] is not None:
        return "tool_call"  # a call is a part of the response only
    return "" if feedback["user"] is None or feedback["user"] in persons else "person"
