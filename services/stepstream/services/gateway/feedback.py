"""Parse the body of a post to `/v1/feedback`, and make events of its items."""

import re
from collections.abc import Iterable
from json import JSONDecoder
from typing import Any

import orjson

from stepstream.core.slices import Work
from stepstream.services import posted_feedback
from stepstream.services.gateway.errors import BadRequest, UnsupportedType
from stepstream.services.gateway.grant import ANYTHING, Grant
from stepstream.services.gateway.identity import Identity
from stepstream.services.posted_feedback import InvalidFeedback, PostedFeedback, check_feedback
from stepstream.topics.events import Feedback

_LONG_BYTES = 64 * 1024
_SPACES = " \t\r\n"
_SPACE = re.compile(f"[{_SPACES}]*").match
_DECODER = JSONDecoder()
"""Finds the ends of items; orjson, which is stricter, reads them."""


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
        try:
            items.append(check_feedback(item))
        except InvalidFeedback as error:
            raise BadRequest(f"item {number}: {error}" if is_list else str(error)) from None
    return items, is_list


def feedback_event(
    posted: PostedFeedback, identity: Identity, now_us: int, producer: str, grant: Grant = ANYTHING
) -> Feedback:
    """Return the event of an item.

    Consent, tenant and user come from the item, else from the headers. An API key's tenant overrides both, and its
    ceiling lowers the consent.
    """
    return posted_feedback.feedback_event(
        posted,
        consent=grant.capped(posted.consent or identity.consent),
        tenant=grant.tenant or posted.tenant or identity.tenant,
        user=posted.user or identity.user,
        now_us=now_us,
        producer=producer,
    )


def _loads(body: bytes) -> Work[Any]:
    """Return a JSON value; a long list is parsed item by item.

    Raises:
        ValueError: not JSON.
    """
    if len(body) < _LONG_BYTES or not body.startswith(b"["):
        return orjson.loads(body)
    try:
        return (yield from _items(body.decode()))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _items(text: str) -> Work[list[Any]]:
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
