"""What comes late, after the erasure of its person, since it waited in somebody's spool: keys and records."""

from typing import Any

from stepstream.config import Settings
from stepstream.crypto.key_ring import ERASURES, KEYS
from stepstream.topics.codec import Codec
from stepstream.topics.producer import EventProducer
from stepstream.topics.table import Table


class LateKeys:
    """Follows keys and erasures and destroys the keys that come after the erasure of their person; close it."""

    def __init__(self, settings: Settings) -> None:
        """Begins to follow."""
        self._codec = Codec(settings.schema_registry)
        self._producer = EventProducer(settings.kafka, self._codec, "govern", linger_ms=0)
        self._erasures = Table(settings, ERASURES)
        self._keys = Table(settings, KEYS)
        self._keys.on_change(self._looked_at)
        self._erasures.on_change(self._erased)
        for key_id, key in self._keys.items().items():  # read before we listened
            self._looked_at(key_id, key)

    def close(self) -> None:
        """Stops following."""
        self._keys.close()
        self._erasures.close()
        self._codec.close()

    def _erased(self, subject: str, _erasure: Any) -> None:
        for key_id, key in self._keys.items().items():
            if key["subject"] == subject:
                self._looked_at(key_id, key)

    def _looked_at(self, key_id: str, key: Any) -> None:
        if key is None:
            return
        erasure = self._erasures.get(key["subject"])
        if erasure is not None and key["occurred_at_us"] <= erasure["occurred_at_us"]:
            self._producer.delete(KEYS, key_id)
            self._producer.poll(0)
