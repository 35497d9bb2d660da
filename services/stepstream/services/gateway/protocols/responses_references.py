"""Items that a request only names: some clients give the ids of a response's items instead of repeating them. Pure.

The AI SDK does so by default: it takes it that the server stores responses (`store` is true unless said otherwise).
"""

from collections.abc import Callable, Iterable
from typing import Any

from stepstream.services.gateway.protocols.responses_items import Raw

SHORTEST_ID = 24
"""Shorter ids, as `msg_1` of some local servers, name items of different callers: those are not kept."""

Known = Callable[[str], Raw | None]
"""The item of an id, where it is known."""


def nameable(items: Iterable[Any]) -> list[Raw]:
    """The items with an id that only their own caller knows."""
    return [
        item
        for item in items
        if isinstance(item, dict) and isinstance(item.get("id"), str) and len(item["id"]) >= SHORTEST_ID
    ]


def resolved(request: Raw, known: Known) -> Raw:
    """The request with the items that its input only names put in; a name that is not known stays as it is."""
    items = request.get("input")
    if not isinstance(items, list) or not any(_is_reference(item) for item in items):
        return request
    return request | {
        "input": [(known(str(item.get("id"))) or item) if _is_reference(item) else item for item in items]
    }


def _is_reference(item: Any) -> bool:
    # The type may be left out where there is an id and nothing else.
    return isinstance(item, dict) and (item.get("type") == "item_reference" or item.keys() == {"id"})
