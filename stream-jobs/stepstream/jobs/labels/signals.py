"""Events as `label` remembers them: what they were governed from, and feedback as the reward needs it. Pure."""

from typing import Any

from stepstream.topics.events import Feedback, Step

_SINCE = {"arrived": 0, "producer": None, "demonstrates": False, "tenant": None, "call": None}
"""What states of earlier releases do not know of feedback."""


def source_of(event: Step | Feedback) -> str:
    """The id of the event that was governed."""
    return origin_of(event)[0]


def origin_of(event: Step | Feedback) -> tuple[str, int, str]:
    """The source event, and the policy and job by which it was governed."""
    governed = event["governed"]
    if governed is None:
        return event["event_id"], 0, ""
    return governed["source_event_id"], governed["policy_version"], governed["job"]


def signal_of(feedback: Feedback, first_ms: int) -> dict[str, Any]:
    """Feedback as a signal (`rewards/evidence.py`), which came first at `first_ms`, the log's time."""
    source, version, job = origin_of(feedback)
    return {
        "id": feedback["event_id"],
        "source_id": source,
        "version": version,
        "job": job,
        "tenant": feedback["tenant"],
        "name": feedback["name"],
        "value": feedback["value"],
        "step": feedback["step_index"],
        "call": feedback["tool_call_id"],
        "source": feedback["source"],
        "producer": feedback["producer"],
        "at": feedback["occurred_at_us"],
        "retracts": feedback["retracts"],
        "consent": feedback["consent"],
        "arrived": first_ms,
        "demonstrates": bool(feedback["demonstration"]),
    }


def complete(signal: dict[str, Any]) -> None:
    """Adds what a signal of an earlier release lacks."""
    signal |= {name: value for name, value in _SINCE.items() if name not in signal}
