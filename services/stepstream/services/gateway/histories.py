"""Conversations by the id of their last response, for upstreams that keep none themselves, and items by theirs."""

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from stepstream.services.gateway.kept_pieces import KeptPieces
from stepstream.services.gateway.protocols.base import History

Erased = Callable[[str, str, int], bool]
"""Whether a tenant's person was erased after a time, in microseconds since the Unix epoch."""


class Histories:
    """The newest of them, where they outlive the gateway; those of people who were erased are gone."""

    def __init__(self, kept: KeptPieces, erased: Erased = lambda tenant, user, at_us: False) -> None:
        self._kept = kept
        self._erased = erased

    def get(self, tenant: str, response_id: str) -> History | None:
        """The conversation up to and with a response; None: it is not known (any more)."""
        said = self._get(tenant, _name(tenant, response_id))
        return None if said is None else History(said["messages"], said["trajectory_id"], _persons(said))

    def item(self, tenant: str, item_id: str) -> dict[str, Any] | None:
        """An item of a response; None: it is not known (any more)."""
        said = self._get(tenant, _item_name(tenant, item_id))
        return None if said is None else said["item"]

    def keep(self, tenant: str, response_id: str, history: History, user: str | None, at_us: int) -> None:
        """Keeps a conversation; it may push out the oldest ones.

        Args:
            tenant: whose.
            response_id: its name.
            history: the conversation, with who took part in it before.
            user: the person who goes on with it; None: nobody that is known.
            at_us: when it happened, in microseconds since the Unix epoch.
        """
        said: dict[str, Any] = {"messages": history.messages, "trajectory_id": history.trajectory_id}
        if history.persons:
            said["persons"] = history.persons
        self._kept.keep(_name(tenant, response_id), orjson.dumps(said | {"user": user, "at_us": at_us}))

    def keep_items(self, tenant: str, items: Iterable[dict[str, Any]], user: str | None, at_us: int) -> None:
        """Keeps items of a response, each by its id; the rest as `keep`."""
        for item in items:
            said = {"item": item, "user": user, "at_us": at_us}
            self._kept.keep(_item_name(tenant, item["id"]), orjson.dumps(said))

    def _get(self, tenant: str, name: str) -> Any:
        piece = self._kept.get(name)
        said = None if piece is None else orjson.loads(piece)
        if said is not None and any(self._erased(tenant, user, at_us) for user, at_us in _persons(said).items()):
            self._kept.forget(name)
            return None
        return said


def _persons(said: dict[str, Any]) -> dict[str, int]:
    """Who took part in what was kept, and since when; earlier releases kept the last of them alone."""
    before: dict[str, int] = said.get("persons", {})
    return before if said["user"] is None else {said["user"]: said["at_us"]} | before


def _name(tenant: str, response_id: str) -> str:
    return f"{tenant}\0{response_id}"


def _item_name(tenant: str, item_id: str) -> str:
    return f"\0{tenant}\0{item_id}"  # no tenant's name begins so
