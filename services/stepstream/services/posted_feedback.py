"""Check an item of feedback about a trajectory, a step or a tool call, and make the event of it. Pure.

The gateway takes items at `/v1/feedback`, the console from its pages.
"""

import uuid
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, ValidationError

from stepstream.core.lenient_json import is_too_deep
from stepstream.jobs.governance.validation import LARGEST_AMOUNT
from stepstream.topics.events import Consent, Feedback, new_feedback
from stepstream.topics.ids import new_event_id

LONGEST = 256
"""Characters of a name."""
LARGEST_INDEX = 2**31 - 1

Name = Annotated[str, Field(min_length=1, max_length=LONGEST)]
Index = Annotated[StrictInt, Field(ge=0, le=LARGEST_INDEX)]

_EXPECTED = {
    "value": "must be a number, true or false",
    "demonstration": "must be a text, or an assistant's message as an object",
}
SIGNALS = ("value", "category", "comment", "demonstration", "retracts", "ends_trajectory")


class InvalidFeedback(ValueError):
    """An item that makes no event; the message names the field and the valid values."""


class PostedFeedback(BaseModel):
    """One posted item of feedback."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trajectory_id: Name
    name: Name
    step_index: Index | None = None
    tool_call_id: Name | None = None
    value: StrictBool | StrictInt | StrictFloat | None = None
    category: Name | None = None
    comment: str | None = None
    demonstration: str | dict[str, Any] | None = None
    source: Name = "user"
    ends_trajectory: Literal["terminated", "truncated"] | None = None
    last_step_index: Index | None = None
    retracts: uuid.UUID | None = None
    event_id: uuid.UUID | None = None
    consent: Consent | None = None
    tenant: Name | None = None
    user: Name | None = None


def check_feedback(item: Any) -> PostedFeedback:
    """Return a decoded item as posted feedback.

    Raises:
        InvalidFeedback: a field is missing, unknown or out of range, or the item contains no signal.
    """
    try:
        posted = PostedFeedback.model_validate(item)
    except ValidationError as error:
        raise InvalidFeedback(_explain(error)) from None
    if all(getattr(posted, signal) is None for signal in SIGNALS):
        raise InvalidFeedback(f"contains no feedback: give one of {', '.join(SIGNALS)}")
    if posted.value is not None and abs(posted.value) > LARGEST_AMOUNT:
        raise InvalidFeedback(f"value: must be at most {LARGEST_AMOUNT:g}")
    if isinstance(posted.demonstration, dict) and is_too_deep(posted.demonstration):
        raise InvalidFeedback("demonstration: is nested too deeply")
    if posted.last_step_index is not None and posted.ends_trajectory is None:
        raise InvalidFeedback("last_step_index: only with ends_trajectory")
    return posted


def feedback_event(
    posted: PostedFeedback, *, consent: Consent, tenant: str, user: str | None, now_us: int, producer: str
) -> Feedback:
    """Return the event of an item.

    Args:
        posted: the item.
        consent: permitted use of the event.
        tenant: tenant of the trajectory.
        user: person whom it concerns; None: unknown.
        now_us: time of the event, in microseconds since the Unix epoch.
        producer: program that writes the event, as `gateway/0.1.0`.
    """
    return new_feedback(
        event_id=str(posted.event_id) if posted.event_id else new_event_id(),
        occurred_at_us=now_us,
        producer=producer,
        consent=consent,
        tenant=tenant,
        user=user,
        trajectory_id=posted.trajectory_id,
        step_index=posted.step_index,
        tool_call_id=posted.tool_call_id,
        name=posted.name,
        value=None if posted.value is None else float(posted.value),
        category=posted.category,
        comment=posted.comment,
        demonstration=_demonstration_text(posted.demonstration),
        source=posted.source,
        retracts=str(posted.retracts) if posted.retracts else None,
        end=posted.ends_trajectory or "open",
        last_step_index=posted.last_step_index,
    )


def _demonstration_text(demonstration: str | dict[str, Any] | None) -> str | None:
    return orjson.dumps(demonstration).decode() if isinstance(demonstration, dict) else demonstration


def _explain(error: ValidationError) -> str:
    messages = {}
    for fault in error.errors(include_url=False, include_input=False):
        field = str(fault["loc"][0]) if fault["loc"] else "body"
        messages[field] = _EXPECTED.get(field, fault["msg"])
    return "; ".join(f"{field}: {message}" for field, message in messages.items())
