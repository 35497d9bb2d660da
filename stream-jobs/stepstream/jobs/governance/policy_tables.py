"""Follow the tables of policies, consents and erasures for the `govern`, `inspect` and `label` jobs."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from stepstream.config import Settings
from stepstream.crypto.erasures import ErasureCheck
from stepstream.jobs.governance.active_policy import ActivePolicies, ActivePolicy, CannotGovern
from stepstream.jobs.governance.consent import strictest_consent, strictest_of
from stepstream.jobs.governance.decision_log import DecisionLog
from stepstream.jobs.governance.policy import EVERY_TENANT, NearDuplicatePolicy, PolicyFile, QualityPolicy
from stepstream.jobs.governance.trajectory_policy import DecisionChange, TrajectoryPolicy
from stepstream.jobs.runtime.followed_tables import FollowedTables
from stepstream.jobs.runtime.retry import retry_while
from stepstream.topics.catalogue import CONSENTS, ERASURES, POLICIES
from stepstream.topics.table import Table, wait_all_current

_BUILT_IN = QualityPolicy(), NearDuplicatePolicy()
_READ_S = 2.0
_SHARED_S = 1.0


class TablePolicies(FollowedTables):
    """`TrajectoryPolicies` from the three tables. Close it, or use it as a context manager."""

    def __init__(self, settings: Settings) -> None:
        """Start to follow; read only after `wait`."""
        super().__init__(settings, POLICIES, CONSENTS, ERASURES)
        self._policies, self._consents, self._erasures = self._tables
        self._erased = ErasureCheck(settings, self._erasures)
        self._parsed: dict[str, tuple[QualityPolicy, NearDuplicatePolicy]] = {}
        self._decisions = DecisionLog()
        for topic, table in ((CONSENTS, self._consents), (ERASURES, self._erasures)):
            table.on_change(partial(self._decisions.note, topic))

    def of(self, tenant: str, agent: str, users: Sequence[str], started_us: int) -> TrajectoryPolicy:
        """As `TrajectoryPolicies.of`.

        Raises:
            SettingsError: there are erasures, but no master key to identify their persons.
            TableFault: decisions may be missing; retry.
        """
        check_tables(self._tables)
        quality, near_duplicates = self._policy(tenant)
        decisions = [strictest_consent(self._consents, tenant, user, agent) for user in (None, *users)]
        return TrajectoryPolicy(
            consent=strictest_of("train", *(consent for consent in decisions if consent is not None)),
            erased=any(self._erased(tenant, user, started_us) for user in users),
            keep_out=quality.keep_out,
            languages=quality.languages,
            signs=near_duplicates.cap > 0,
        )

    def _policy(self, tenant: str) -> tuple[QualityPolicy, NearDuplicatePolicy]:
        """Return the tables of the tenant's policy, else of the one for every tenant, else of the built-in one."""
        policy = self._policies.get(tenant) or self._policies.get(EVERY_TENANT)
        if policy is None:
            return _BUILT_IN
        parsed = self._parsed.get(policy["event_id"])
        if parsed is None:
            file = PolicyFile.parse(policy["document"])
            parsed = self._parsed[policy["event_id"]] = (file.quality, file.near_duplicates)
        return parsed

    def fingerprint(self) -> int:
        """As `TrajectoryPolicies.fingerprint`."""
        self._read_decisions()
        return self._decisions.fingerprint

    def changes_since(self, cursor: int | None) -> tuple[int, list[DecisionChange] | None]:
        """As `TrajectoryPolicies.changes_since`."""
        self._read_decisions()
        return self._decisions.since(cursor)

    def subject_of(self, tenant: str, user: str) -> str:
        """As `TrajectoryPolicies.subject_of`."""
        return self._erased.subject_of(tenant, user)

    def _read_decisions(self) -> None:
        if not self._decisions.is_loaded:
            self._decisions.load({CONSENTS: self._consents.items(), ERASURES: self._erasures.items()})
        self._decisions.read()


class RetryingPolicies:
    """Policies that wait while one cannot be applied or a table has a fault, until the work is cancelled."""

    def __init__(self, policies: ActivePolicies, tables: Sequence[Table], cancelled: Callable[[], bool]) -> None:
        self._policies, self._tables, self._cancelled = policies, tables, cancelled
        self.consent = policies.consent

    def of(self, tenant: str) -> ActivePolicy:
        """Return a tenant's active policy; block until it can be applied.

        Raises:
            Cancelled: the work was cancelled while waiting.
        """
        return retry_while(lambda: self._of(tenant), (CannotGovern, TableFault), self._cancelled)

    def _of(self, tenant: str) -> ActivePolicy:
        check_tables(self._tables)
        return self._policies.of(tenant)


class TableFault(Exception):
    """Rows of a table may be older than its topic, so nothing may be decided by them; the message names the reason."""


def check_tables(tables: Sequence[Table]) -> None:
    """Check that tables hold the newest records.

    Raises:
        TableFault: one does not.
    """
    for table in tables:
        if table.fault is not None:
            raise TableFault(f"events wait, because a decision about them may be missing: {table.fault}")


class RetryingTrajectoryPolicies:
    """`TrajectoryPolicies` that wait while a table has a fault, until the work is cancelled."""

    def __init__(self, policies: TablePolicies, cancelled: Callable[[], bool]) -> None:
        self._policies, self._cancelled = policies, cancelled
        self.fingerprint, self.changes_since = policies.fingerprint, policies.changes_since
        self.subject_of = policies.subject_of

    def of(self, tenant: str, agent: str, users: Sequence[str], started_us: int) -> TrajectoryPolicy:
        """As `TrajectoryPolicies.of`.

        Raises:
            Cancelled: the work was cancelled while waiting.
            SettingsError: there are erasures, but no master key to identify their persons.
        """
        return retry_while(lambda: self._policies.of(tenant, agent, users, started_us), TableFault, self._cancelled)


class _NotRead(Exception):
    """A table is not read completely."""


class ReadBarrier:
    """Block until tables are read completely. Partitions that are opened within a second share one wait."""

    def __init__(self, tables: Sequence[Table], cancelled: Callable[[], bool]) -> None:
        self._tables, self._cancelled = tables, cancelled
        self._read_at = -math.inf

    def wait(self) -> None:
        """Block until the tables hold every record that their topics hold now.

        Raises:
            Cancelled: `cancelled` became true while waiting.
        """
        if time.monotonic() - self._read_at > _SHARED_S:
            retry_while(self._read, _NotRead, self._cancelled)

    def _read(self) -> None:
        started = time.monotonic()
        if not wait_all_current(self._tables, _READ_S):
            raise _NotRead("policies and consents are not read yet, so events wait: is Kafka up?")
        self._read_at = started
