"""What tenants and people have said, as `label` asks for it: the tables of policies, consents and erasures.

x
"""

from collections.abc import Callable, Sequence

from stepstream.config import Settings
from stepstream.crypto.erasures import Erased
from stepstream.jobs.governance.active_policy import ActivePolicies, ActivePolicy, CannotGovern
from stepstream.jobs.governance.consent import stricter, strictest
from stepstream.jobs.governance.policy import EVERY_TENANT, NearDuplicatePolicy, PolicyFile, QualityPolicy
from stepstream.jobs.governance.trajectory_policy import TrajectoryPolicy
from stepstream.jobs.runtime.followed_tables import FollowedTables, fingerprint_of
from stepstream.jobs.runtime.retry import retry_while

POLICIES, CONSENTS, ERASURES = "policies", "consents", "erasures"
_BUILT_IN = QualityPolicy(), NearDuplicatePolicy()


class TablePolicies(FollowedTables):
    """Follows the three tables; close it, or use it as a context manager."""

    def __init__(self, settings: Settings) -> None:
        """Begins to follow; ask only after `wait`."""
        super().__init__(settings, POLICIES, CONSENTS, ERASURES)
        self._policies, self._consents, self._erasures = self._tables
        self._erased = Erased(settings, self._erasures)
        self._read: dict[str, tuple[QualityPolicy, NearDuplicatePolicy]] = {}
        self._fingerprint = 0
        self._watch(self._consents, self._erasures)

    def standing(self, tenant: str, agent: str, users: Sequence[str], started_us: int) -> TrajectoryPolicy:
        """What stands about a trajectory.

        Raises:
            SettingsError: there are erasures, and no master key by which to know whose they are.
        """
        quality, near = self._policy(tenant)
        said = [strictest(self._consents, tenant, user, agent) for user in (None, *users)]
        return TrajectoryPolicy(
            consent=stricter("train", *(consent for consent in said if consent is not None)),
            erased=any(self._erased(tenant, user, started_us) for user in users),
            keep_out=quality.keep_out,
            languages=quality.languages,
            signs=near.cap > 0,
        )

    def fingerprint(self) -> int:
        """Names all consent and all erasures as of now."""
        if self._news():
            known = [(k, r["event_id"]) for t in (self._consents, self._erasures) for k, r in t.items().items()]
            self._fingerprint = fingerprint_of(sorted(known))
        return self._fingerprint

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


class RetryingPolicies:
    """Waits where a policy cannot be applied, until it is another one or the work is taken away."""

    def __init__(self, rulings: ActivePolicies, cancelled: Callable[[], bool]) -> None:
        self._rulings, self._cancelled = rulings, cancelled
        self.consent = rulings.consent

    def of(self, tenant: str) -> ActivePolicy:
        """How a tenant's records are governed.

        Raises:
            Abandoned: asked to give up while waiting.
        """
        return retry_while(lambda: self._rulings.of(tenant), CannotGovern, self._cancelled)
