"""Write a decision as the event of the topic `decisions`. Pure."""

from dataclasses import asdict
from typing import cast

from stepstream.services.control.decide.records import Decision
from stepstream.topics.events import Decision as DecisionEvent


def event_of(decision: Decision) -> DecisionEvent:
    """Return the event: its id is the decision's, its time that of the snapshot, so that a replay sends the same."""
    fields = asdict(decision)
    event = {"event_id": fields.pop("id"), "occurred_at_us": fields.pop("at_us"), **fields}
    lists = {name: list(event[name]) for name in ("evidence", "lost", "roles")}
    return cast(DecisionEvent, event | lists)
