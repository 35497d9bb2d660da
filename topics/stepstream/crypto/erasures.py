"""Test whether an event happened before its person was erased."""

from stepstream.config import Settings, SettingsError
from stepstream.crypto.master_key import MasterKey, load_master_key
from stepstream.topics.table import Table


class ErasureCheck:
    """Callable that returns True if a person was erased after an event."""

    def __init__(self, settings: Settings, erasures: Table) -> None:
        """`erasures` is the table of the topic, by subject; it may change at any time."""
        self._settings, self._erasures = settings, erasures
        self._has_erasures = False
        self._master: MasterKey | None = None

    def __call__(self, tenant: str, user: str, occurred_us: int) -> bool:
        """Return True if a person was erased at or after a time.

        Raises:
            SettingsError: erasures exist, but the master key that identifies their persons is missing.
        """
        self._has_erasures = self._has_erasures or bool(self._erasures.items())
        if not self._has_erasures:
            return False
        erasure = self._erasures.get(self.subject_of(tenant, user))
        return erasure is not None and bool(erasure["occurred_at_us"] >= occurred_us)

    def subject_of(self, tenant: str, user: str) -> str:
        """Return a person's name on `erasures`.

        Raises:
            SettingsError: the master key is missing.
        """
        if self._master is None:
            self._master = load_master_key(self._settings, create=False)
            if self._master is None:
                raise SettingsError(
                    "a person was erased, and only the master key identifies the person: set "
                    "STEPSTREAM_SEAL_MASTER_KEY to the value of the other jobs"
                )
        return self._master.subject(tenant, user)
