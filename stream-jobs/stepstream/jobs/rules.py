"""What tenants and people have said, as `label` asks for it: the tables of policies, consents and erasures."""

import hashlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from stepstream.config import Settings, SettingsError
from stepstream.jobs.consent import stricter, strictest
from stepstream.jobs.policy import EVERY_TENANT, NearDuplicatePolicy, PolicyFile, QualityPolicy
from stepstream.jobs.standing import Standing
from stepstream.topics.seal_keys import Master, master_of
from stepstream.topics.table import Table

POLICIES, CONSENTS, ERASURES = "policies", "consents", "erasures"
_WAIT_S = 1.0
_BUILT_IN = QualityPolicy(), NearDuplicatePolicy()


class TableRules:
    """Follows the three tables; close it, or use it as a context manager."""

    def __init__(self, settings: Settings) -> None:
        """Begins to follow; ask only after `wait`."""
        self._settings = settings
        self._policies, self._consents, self._erasures = (
            Table(settings, topic) for topic in (POLICIES, CONSENTS, ERASURES)
        )
        self._master: Master | None = None
        self._read: dict[str, tuple[QualityPolicy, NearDuplicatePolicy]] = {}
        self._changed = True
        self._fingerprint = 0
        for table in (self._consents, self._erasures):
            table.on_change(self._note)

    def wait(self, abandoned: Callable[[], bool]) -> bool:
        """Blocks until all that is in the tables is known; False: asked to give up before."""
        for table in (self._policies, self._consents, self._erasures):
            while not table.wait_current(_WAIT_S):
                if abandoned():
                    return False
        return True

    def standing(self, tenant: str, agent: str, users: Sequence[str], started_us: int) -> Standing:
        """What stands about a trajectory.

        Raises:
            SettingsError: there are erasures, and no master key by which to know whose they are.
        """
        quality, near = self._policy(tenant)
        said = [strictest(self._consents, tenant, user, agent) for user in (None, *users)]
        return Standing(
            consent=stricter("train", *(consent for consent in said if consent is not None)),
            erased=any(self._erased(tenant, user, started_us) for user in users),
            keep_out=quality.keep_out,
            languages=quality.languages,
            signs=near.cap > 0,
        )

    def fingerprint(self) -> int:
        """Names all consent and all erasures as of now."""
        if self._changed:
            self._changed = False  # before reading: what comes meanwhile sets it again
            known = [(k, r["event_id"]) for t in (self._consents, self._erasures) for k, r in t.items().items()]
            digest = hashlib.blake2b(repr(sorted(known)).encode(), digest_size=8).digest()
            self._fingerprint = int.from_bytes(digest) if known else 0
        return self._fingerprint

    def close(self) -> None:
        """Stops following."""
        for table in (self._policies, self._consents, self._erasures):
            table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _policy(self, tenant: str) -> tuple[QualityPolicy, NearDuplicatePolicy]:
        """What the tenant's policy says, or the one for every tenant, or the built-in one."""
        policy = self._policies.get(tenant) or self._policies.get(EVERY_TENANT)
        if policy is None:
            return _BUILT_IN
        known = self._read.get(policy["event_id"])
        if known is None:
            parsed = PolicyFile.parse(policy["document"])
            known = self._read[policy["event_id"]] = (parsed.quality, parsed.near_duplicates)
        return known

    def _erased(self, tenant: str, user: str, started_us: int) -> bool:
        """Whether a person was erased after the trajectory had begun."""
        if not self._erasures.items():
            return False
        if self._master is None:
            self._master = master_of(self._settings, make=False)
            if self._master is None:
                raise SettingsError(
                    "somebody was erased, and without the master key it cannot be told who: set "
                    "STEPSTREAM_SEAL_MASTER_KEY as it is for the other jobs"
                )
        erasure = self._erasures.get(self._master.subject(tenant, user))
        return erasure is not None and bool(erasure["occurred_at_us"] >= started_us)

    def _note(self, key: str, record: Any) -> None:
        self._changed = True
