"""Turn governed feedback into a signal, the form that trajectories keep and rewards count. Pure."""

from typing import Any

from stepstream.topics.events import Feedback, Step

TOOL_ERROR = "tool_error"
"""Name of feedback that a tool call failed."""
_ADDED_FIELDS = {"arrived": 0, "producer": None, "demonstrates": False, "tenant": None, "call": None}
"""Fields of signals that the states of earlier releases lack, with their defaults."""


def source_of(event: Step | Feedback) -> str:
    """Return the id of the event from which this one was governed."""
    return origin_of(event)[0]


def origin_of(event: Step | Feedback) -> tuple[str, int, str]:
    """Return the id of the source event, and the policy version and job that governed it."""
    governed = event["governed"]
    if governed is None:
        return event["event_id"], 0, ""
    return governed["source_event_id"], governed["policy_version"], governed["job"]


def superseded_by(step: Step) -> str | None:
    """Return the id of the source event of a poorer record of the same call; None: there is none."""
    governed = step["governed"]
    return None if governed is None else governed["supersedes"]


def signal_of(feedback: Feedback, first_ms: int) -> dict[str, Any]:
    """Return feedback as a signal (`rewards/counted_feedback.py`).

    Args:
        feedback: governed feedback.
        first_ms: log time of the first event of its source.
    """
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
        "error": _error_class(feedback),
    }


def _error_class(feedback: Feedback) -> str | None:
    """Return the error class of feedback that a tool call failed; None for other feedback."""
    if feedback["name"] != TOOL_ERROR or feedback["tool_call_id"] is None:
        return None
    return feedback["category"] or feedback["comment"] or "error"


def add_missing_fields(signal: dict[str, Any]) -> None:
    """Add the fields that a signal of an earlier release lacks."""
    signal |= {name: value for name, value in _ADDED_FIELDS.items() if name not in signal}
