"""Read which persons were erased, and when."""

from stepstream.config import Settings, SettingsError
from stepstream.crypto.master_key import Master, master_of
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
