"""Destroy keys that reach the log after the erasure of their person, because a spool had delayed them."""

from typing import Any

from stepstream.config import Settings
from stepstream.crypto.master_key import destroyed, is_destroyed
from stepstream.topics.catalogue import ERASURES, SUBJECT_KEYS
from stepstream.topics.codec import Codec
from stepstream.topics.producer import EventProducer
from stepstream.topics.table import Table


class LateKeys:
    """Follows keys and erasures, and destroys each key that is older than the erasure of its person. Close it."""

    def __init__(self, settings: Settings) -> None:
        """Start to follow."""
        self._codec = Codec(settings)
        self._producer = EventProducer(settings.kafka, self._codec, "govern", linger_ms=0)
        self._erasures = Table(settings, ERASURES)
        self._keys = Table(settings, SUBJECT_KEYS)
        self._keys.on_change(self._check_key)
        self._erasures.on_change(self._check_keys_of)
        for key_id, key in self._keys.items().items():  # keys that were read before the callbacks were set
            self._check_key(key_id, key)

    def close(self) -> None:
        """Stop following."""
        self._keys.close()
        self._erasures.close()
        self._codec.close()

    def _check_keys_of(self, subject: str, _erasure: Any) -> None:
        for key_id, key in self._keys.items().items():
            if key["subject"] == subject:
                self._check_key(key_id, key)

    def _check_key(self, key_id: str, key: Any) -> None:
        if key is None or is_destroyed(key):
            return
        erasure = self._erasures.get(key["subject"])
        if erasure is not None and key["occurred_at_us"] <= erasure["occurred_at_us"]:
            self._producer.send(SUBJECT_KEYS, key_id, destroyed(key))
            self._producer.poll(0)
