"""Choose the demonstration for each step: the response that the agent should have given. Pure.

The newest usable demonstration that was not retracted counts, as for reward feedback. One about the whole trajectory
counts for its last response.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stepstream.jobs.rewards.counted_feedback import Signal, unretracted
from stepstream.topics.events import Feedback, Step
from stepstream.topics.step_contexts import is_empty_failure
from stepstream.topics.trusted_sources import may_report


@dataclass(frozen=True, slots=True)
class ChosenDemonstrations:
    """Chosen demonstrations, and the reasons for leaving out others."""

    by_step: Mapping[int, Feedback]
    """Feedback with the demonstration, by step index."""
    faults: tuple[str, ...]
    """Reasons, each once, sorted."""


def unretracted_demonstrations(feedback: Iterable[Signal]) -> list[Signal]:
    """Return the signals with a demonstration that was not retracted, in order of time."""
    ordered = sorted(feedback, key=lambda signal: (signal["at"], signal["id"]))
    return [signal for signal in unretracted(ordered) if signal["demonstrates"]]


def choose_demonstrations(
    steps: Sequence[Step], given: Iterable[Feedback], users: Collection[str]
) -> ChosenDemonstrations:
    """Return the newest trainable demonstration of each step.

    Args:
        steps: the trajectory's steps in order, at least one.
        given: governed feedback with demonstrations that were not retracted, in any order.
        users: users under whose keys the label is sealed. A demonstration of another user is left out: it would survive
            the erasure of that user.
    """
    indices = {step["step_index"] for step in steps}
    last = next((step for step in reversed(steps) if not is_empty_failure(step)), steps[-1])["step_index"]
    by_step: dict[int, Feedback] = {}
    faults = set()
    for feedback in sorted(given, key=lambda each: (each["occurred_at_us"], each["event_id"])):
        index = last if feedback["step_index"] is None else feedback["step_index"]
        fault = "no_step" if index not in indices else _fault(feedback, users)
        if fault:
            faults.add(fault)
        else:
            by_step[index] = feedback
    return ChosenDemonstrations(by_step, tuple(sorted(faults)))


def _fault(feedback: Feedback, users: Collection[str]) -> str:
    """Return the reason for leaving out a demonstration, one word; empty: usable."""
    if feedback["consent"] != "train":
        return "consent"
    if feedback["governed"] is None or not feedback["governed"]["trainable"]:
        return "redacted"  # training would teach pseudonyms
    if not may_report(feedback["producer"], feedback["source"]):
        return "unproven"
    if feedback["tool_call_id"] is not None:
        return "tool_call"  # a call is only a part of the response
    return "" if feedback["user"] is None or feedback["user"] in users else "person"
