"""Conversations by the id of their last response, for upstreams that keep none themselves."""

from collections.abc import Callable
from typing import Any

import orjson

from stepstream.services.gateway.kept_pieces import KeptPieces
from stepstream.services.gateway.protocols.base import History

Erased = Callable[[str, str, int], bool]
"""Whether a tenant's person was erased after a time, in microseconds since the Unix epoch."""


class Histories:
    """The newest conversations, where they outlive the gateway; those of people who were erased are gone."""

    def __init__(self, kept: KeptPieces, erased: Erased = lambda tenant, user, at_us: False) -> None:
        self._kept = kept
        self._erased = erased

    def get(self, tenant: str, response_id: str) -> History | None:
        """The conversation up to and with a response; None: it is not known (any more)."""
        name = _name(tenant, response_id)
        piece = self._kept.get(name)
        if piece is None:
            return None
        said = orjson.loads(piece)
        if said["user"] is not None and self._erased(tenant, said["user"], said["at_us"]):
            self._kept.forget(name)
            return None
        return History(said["messages"], said["trajectory_id"])

    def keep(self, tenant: str, response_id: str, history: History, user: str | None, at_us: int) -> None:
        """Keeps a conversation; it may push out the oldest ones.

        Args:
            tenant: whose.
            response_id: its name.
            history: the conversation.
            user: the person in it; None: nobody that is known.
            at_us: when it happened, in microseconds since the Unix epoch.
        """
        said: dict[str, Any] = {"messages": history.messages, "trajectory_id": history.trajectory_id}
        self._kept.keep(_name(tenant, response_id), orjson.dumps(said | {"user": user, "at_us": at_us}))


def _name(tenant: str, response_id: str) -> str:
    return f"{tenant}\0{response_id}"
