"""Items that this process has seen responses bring: some clients name them by id instead of repeating them.

The AI SDK does so by default: it takes it that the server stores responses (`store` is true unless said otherwise).
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import orjson

KEPT_BYTES = 64 * 1024 * 1024
SHORTEST_ID = 24
"""Shorter ids, as `msg_1` of some local servers, name items of different callers: those are not remembered."""


class ItemMemory:
    """The newest items, up to a size. All callers share it, so an id must be one that only its own caller knows."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        """`limit_bytes`: of all items together, as JSON."""
        self._limit = limit_bytes
        self._size = 0
        self._items: OrderedDict[str, bytes] = OrderedDict()

    def keep(self, items: Iterable[Any]) -> None:
        """Remembers the items that have an id which nobody guesses."""
        for item in items:
            name = item.get("id") if isinstance(item, dict) else None
            if not isinstance(name, str) or len(name) < SHORTEST_ID:
                continue
            kept = orjson.dumps(item)
            self._size += len(kept) - len(self._items.pop(name, b""))
            self._items[name] = kept
        while self._size > self._limit:
            self._size -= len(self._items.popitem(last=False)[1])

    def resolved(self, items: Iterable[Any]) -> list[Any]:
        """The items, with those that are only named put in; a name that is not known stays as it is."""
        return [self._resolve(item) for item in items]

    def _resolve(self, item: Any) -> Any:
        # The type may be left out where there is an id and nothing else.
        if isinstance(item, dict) and (item.get("type") == "item_reference" or item.keys() == {"id"}):
            kept = self._items.get(str(item.get("id")))
            return item if kept is None else orjson.loads(kept)
        return item
