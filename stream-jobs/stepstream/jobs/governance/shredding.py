"""What comes late, after the erasure of its person, since it waited in somebody's spool: keys and records."""

from typing import Any

from stepstream.config import Settings, SettingsError
from stepstream.topics.codec import Codec
from stepstream.topics.master_key import Master, master_of
from stepstream.topics.producer import EventProducer
from stepstream.topics.seal_keys import ERASURES, KEYS
from stepstream.topics.table import Table


class Erased:
    """Tells whether something happened with a person before that person was erased."""

    def __init__(self, settings: Settings, erasures: Table) -> None:
        """`erasures` is the table, by subject; it may change at any time."""
        self._settings, self._erasures = settings, erasures
        self._some = False
        self._master: Master | None = None

    def __call__(self, tenant: str, user: str, occurred_us: int) -> bool:
        """Whether a person was erased after a time.

        Raises:
            SettingsError: there are erasures, and no master key by which to know whose they are.
        """
        self._some = self._some or bool(self._erasures.items())
        if not self._some:
            return False
        if self._master is None:
            self._master = master_of(self._settings, make=False)
            if self._master is None:
                raise SettingsError(
                    "somebody was erased, and without the master key it cannot be told who: set "
                    "STEPSTREAM_SEAL_MASTER_KEY as it is for the other jobs"
                )
        erasure = self._erasures.get(self._master.subject(tenant, user))
        return erasure is not None and bool(erasure["occurred_at_us"] >= occurred_us)


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
