"""Check feedback posted to `/v1/feedback` about a trajectory, a step or a tool call, and make events of it."""

import re
import uuid
from collections.abc import Iterable
from json import JSONDecoder
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, ValidationError

from stepstream.core.slices import Work
from stepstream.jobs.governance.validation import LARGEST_AMOUNT
from stepstream.services.gateway.errors import BadRequest, UnsupportedType
from stepstream.services.gateway.grant import ANYTHING, Grant
from stepstream.services.gateway.identity import LARGEST_INDEX, LONGEST, Identity
from stepstream.topics.events import Consent, Feedback, new_feedback
from stepstream.topics.ids import new_event_id

Name = Annotated[str, Field(min_length=1, max_length=LONGEST)]
Index = Annotated[StrictInt, Field(ge=0, le=LARGEST_INDEX)]

_LONG_BYTES = 64 * 1024
_SPACES = " \t\r\n"
_SPACE = re.compile(f"[{_SPACES}]*").match
_DECODER = JSONDecoder()
"""Finds the ends of items; orjson, which is stricter, reads them."""
_EXPECTED = {
    "value": "must be a number, true or false",
    "demonstration": "must be a text, or an assistant's message as an object",
}
SIGNALS = ("value", "category", "comment", "demonstration", "retracts", "ends_trajectory")


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


def check_content_type(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse types that a page of any site may post without asking the gateway first.

    Raises:
        UnsupportedType: the body is not declared as JSON.
    """
    kind = next((value for name, value in headers if name == b"content-type"), b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" and not kind.endswith(b"+json"):
        raise UnsupportedType(
            f"feedback needs the header `content-type: application/json`, not '{kind.decode('latin-1')}'"
        )


def parse_feedback(body: bytes) -> Work[tuple[list[PostedFeedback], bool]]:
    """Return the items of a body, and True if it was a list.

    Raises:
        BadRequest: not JSON, or an invalid item; the message names the field and the valid values.
    """
    try:
        raw = yield from _loads(body)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    is_list = isinstance(raw, list)
    items = []
    for number, item in enumerate(raw if is_list else [raw]):
        yield
        where = f"item {number}: " if is_list else ""
        try:
            posted = PostedFeedback.model_validate(item)
        except ValidationError as error:
            raise BadRequest(where + _explain(error)) from None
        if all(getattr(posted, signal) is None for signal in SIGNALS):
            raise BadRequest(f"{where}contains no feedback: give one of {', '.join(SIGNALS)}")
        if posted.value is not None and abs(posted.value) > LARGEST_AMOUNT:
            raise BadRequest(f"{where}value: must be at most {LARGEST_AMOUNT:g}")
        if posted.last_step_index is not None and posted.ends_trajectory is None:
            raise BadRequest(f"{where}last_step_index: only with ends_trajectory")
        items.append(posted)
    return items, is_list


def feedback_event(
    posted: PostedFeedback, identity: Identity, now_us: int, producer: str, grant: Grant = ANYTHING
) -> Feedback:
    """Return the event of an item.

    Consent, tenant and user come from the item, else from the headers. An API key's tenant overrides both, and its
    ceiling lowers the consent.
    """
    return new_feedback(
        event_id=str(posted.event_id) if posted.event_id else new_event_id(),
        occurred_at_us=now_us,
        producer=producer,
        consent=grant.capped(posted.consent or identity.consent),
        tenant=grant.tenant or posted.tenant or identity.tenant,
        user=posted.user or identity.user,
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


def _loads(body: bytes) -> Work[Any]:
    """Return a JSON value; a long list is parsed item by item.

    Raises:
        ValueError: not JSON.
    """
    if len(body) < _LONG_BYTES or not body.startswith(b"["):
        return orjson.loads(body)
    text = body.decode()
    values: list[Any] = []
    at = _SPACE(text, 1).end()  # type: ignore[union-attr]
    while not (text.startswith("]", at) and not values):
        _, end = _DECODER.raw_decode(text, at)
        values.append(orjson.loads(text[at:end]))
        yield
        at = _SPACE(text, end).end()  # type: ignore[union-attr]
        if not text.startswith(",", at):
            break
        at = _SPACE(text, at + 1).end()  # type: ignore[union-attr]
    if text[at:].rstrip(_SPACES) != "]":
        raise ValueError(f"the list does not end at character {at}")
    return values


def _demonstration_text(demonstration: str | dict[str, Any] | None) -> str | None:
    return orjson.dumps(demonstration).decode() if isinstance(demonstration, dict) else demonstration


def _explain(error: ValidationError) -> str:
    messages = {}
    for fault in error.errors(include_url=False, include_input=False):
        field = str(fault["loc"][0]) if fault["loc"] else "body"
        messages[field] = _EXPECTED.get(field, fault["msg"])
    return "; ".join(f"{field}: {message}" for field, message in messages.items())
