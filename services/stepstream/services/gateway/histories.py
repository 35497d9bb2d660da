"""Conversations by the id of their last response, for upstreams that keep none themselves. Pure."""

from collections import OrderedDict
from typing import Any

import orjson

from stepstream.services.gateway.protocols.base import History


class Histories:
    """The most recently used conversations, up to a number of bytes; each is kept as JSON, so that bytes are bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def get(self, tenant: str, response_id: str) -> History | None:
        """The conversation up to and with a response; None: it is not known (any more)."""
        kept = self._kept.get((tenant, response_id))
        if kept is None:
            return None
        self._kept.move_to_end((tenant, response_id))
        return History(orjson.loads(kept))

    def keep(self, tenant: str, response_id: str, messages: list[dict[str, Any]]) -> None:
        """Keeps a conversation of chat messages; it may push out the least recently used ones."""
        key = tenant, response_id
        self._size -= len(self._kept.pop(key, b""))
        self._kept[key] = kept = orjson.dumps(messages)
        self._size += len(kept)
        while self._size > self._limit:
            _, gone = self._kept.popitem(last=False)
            self._size -= len(gone)
