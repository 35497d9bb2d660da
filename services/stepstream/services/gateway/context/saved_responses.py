"""Save responses and their items by id, for upstreams that keep no conversations themselves.

A conversation is stored once, not at each of its responses. A message is stored under the digest of itself and all
messages before it, with the digest before; a response names the last digest. The digests of a trajectory begin with
random bytes, its seed, which only its responses name: without an id, the store reveals no message, nor whether it has a
given one. Recording never fails: a conversation that could not be saved is unknown later.
"""

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from stepstream.services.gateway.context.encrypted_store import EncryptedStore
from stepstream.services.gateway.protocols.base import History

IsErased = Callable[[str, str, int], bool]
"""True if a tenant's person was erased at or after a time, in microseconds since the Unix epoch."""
_SEED_BYTES = 16
_TRAJECTORIES = 50_000
"""Conversations whose stored part is known; one that is forgotten is stored once more."""
_REFRESH_S = 60.0
"""Time after which a use makes the messages of a conversation as young as new ones."""


@dataclass(slots=True)
class _Stored:
    """The part of a trajectory's conversation that is stored."""

    seed: bytes
    messages: int = 0
    last: bytes = b""
    refreshed_at: float = -_REFRESH_S


class SavedResponses:
    """Saved conversations and items. Those of erased persons are never returned."""

    def __init__(
        self,
        store: EncryptedStore,
        is_erased: IsErased = lambda tenant, user, at_us: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`monotonic`: returns seconds of a monotonic clock."""
        self._store = store
        self._is_erased = is_erased
        self._monotonic = monotonic
        self._stored: OrderedDict[tuple[str, str], _Stored] = OrderedDict()

    def get(self, tenant: str, response_id: str) -> History | None:
        """Return the conversation up to and including a response; None: unknown or expired."""
        saved = self._load(tenant, _response_name(tenant, response_id))
        if saved is None:
            return None
        messages = saved["messages"] if "messages" in saved else self._messages(tenant, saved)
        return None if messages is None else History(messages, saved["trajectory_id"], _participants(saved))

    def item(self, tenant: str, item_id: str) -> dict[str, Any] | None:
        """Return an item of a response; None: unknown or expired."""
        saved = self._load(tenant, _item_name(tenant, item_id))
        return None if saved is None else saved["item"]

    def save(self, tenant: str, response_id: str, history: History, user: str | None, at_us: int) -> None:
        """Save a conversation; the oldest ones may be deleted for it.

        Args:
            tenant: tenant of the conversation.
            response_id: id of its last response.
            history: the conversation, with its earlier participants.
            user: the person who made this call; None: unknown.
            at_us: time of the call, in microseconds since the Unix epoch.
        """
        stored = self._stored_part(tenant, history.trajectory_id)
        digests = _digests(stored.seed, history.messages)
        known = stored.messages if stored.last in digests[stored.messages : stored.messages + 1] else 0
        if not self._refresh(tenant, stored, digests[1 : known + 1]):
            known = 0
        for message, before, digest in zip(
            history.messages[known:], digests[known:], digests[known + 1 :], strict=False
        ):
            self._store.put(_message_name(tenant, digest), orjson.dumps({"before": before.hex(), "message": message}))
        stored.messages, stored.last = len(history.messages), digests[-1]
        saved: dict[str, Any] = {
            "seed": stored.seed.hex(),
            "last": stored.last.hex(),
            "trajectory_id": history.trajectory_id,
        }
        if history.participants:
            saved["persons"] = history.participants
        self._store.put(_response_name(tenant, response_id), orjson.dumps(saved | {"user": user, "at_us": at_us}))

    def save_items(self, tenant: str, items: Iterable[dict[str, Any]], user: str | None, at_us: int) -> None:
        """Save items of a response, each by its id; the other arguments as for `save`."""
        for item in items:
            saved = {"item": item, "user": user, "at_us": at_us}
            self._store.put(_item_name(tenant, item["id"]), orjson.dumps(saved))

    def _messages(self, tenant: str, saved: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Return the messages of a response's conversation; None: one is missing."""
        seed, digest = bytes.fromhex(saved["seed"]), bytes.fromhex(saved["last"])
        messages: list[dict[str, Any]] = []
        digests: list[bytes] = []
        stored = _Stored(seed, last=digest)
        while digest != seed:
            value = self._store.get(_message_name(tenant, digest))
            if value is None:
                self._stored.pop((tenant, saved["trajectory_id"]), None)
                return None
            link = orjson.loads(value)
            messages.append(link["message"])
            digests.append(digest)
            digest = bytes.fromhex(link["before"])
        stored.messages = len(messages)
        before = self._stored.get((tenant, saved["trajectory_id"]))
        if before is not None and before.seed == seed:
            stored.refreshed_at = before.refreshed_at
        self._remember(tenant, saved["trajectory_id"], stored)
        self._refresh(tenant, stored, digests)
        return messages[::-1]

    def _stored_part(self, tenant: str, trajectory_id: str) -> _Stored:
        stored = self._stored.get((tenant, trajectory_id)) or _Stored(os.urandom(_SEED_BYTES))
        self._remember(tenant, trajectory_id, stored)
        return stored

    def _remember(self, tenant: str, trajectory_id: str, stored: _Stored) -> None:
        self._stored[tenant, trajectory_id] = stored
        self._stored.move_to_end((tenant, trajectory_id))
        if len(self._stored) > _TRAJECTORIES:
            self._stored.popitem(last=False)

    def _refresh(self, tenant: str, stored: _Stored, digests: Sequence[bytes]) -> bool:
        """Make messages as young as new ones, once in a while; return False if one of them is missing."""
        now = self._monotonic()
        if not digests or now - stored.refreshed_at < _REFRESH_S:
            return True
        stored.refreshed_at = now
        return self._store.refresh([_message_name(tenant, digest) for digest in digests])

    def _load(self, tenant: str, name: str) -> Any:
        value = self._store.get(name)
        saved = None if value is None else orjson.loads(value)
        if saved is not None and any(
            self._is_erased(tenant, user, at_us) for user, at_us in _participants(saved).items()
        ):
            self._store.delete(name)
            return None
        return saved


def _participants(saved: dict[str, Any]) -> dict[str, int]:
    """Return each person with the time of the first call; earlier releases stored only the last person."""
    before: dict[str, int] = saved.get("persons", {})
    return before if saved["user"] is None else {saved["user"]: saved["at_us"]} | before


def _digests(seed: bytes, messages: Iterable[dict[str, Any]]) -> list[bytes]:
    """Return the seed, then the digest of each message with all before it."""
    digests = [seed]
    for message in messages:
        digests.append(blake2b(digests[-1] + orjson.dumps(message), digest_size=_SEED_BYTES).digest())
    return digests


def _message_name(tenant: str, digest: bytes) -> str:
    return f"\0\0{tenant}\0{digest.hex()}"


def _response_name(tenant: str, response_id: str) -> str:
    return f"{tenant}\0{response_id}"


def _item_name(tenant: str, item_id: str) -> str:
    return f"\0{tenant}\0{item_id}"  # no tenant's name begins with a null
