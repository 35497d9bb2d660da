"""How a tenant's records are governed now: its newest policy, and what was said about consent. Pure."""

from dataclasses import dataclass
from typing import Any

from stepstream.jobs.governance.consent import ConsentSource, effective
from stepstream.jobs.governance.policy import EVERY_TENANT, PolicyError, PolicyFile
from stepstream.jobs.redaction import Redactor, tenant_key
from stepstream.topics.events import Consent


class CannotGovern(Exception):
    """A tenant's policy cannot be applied here, so its records wait; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """One version of a tenant's policy, ready to be applied."""

    version: int
    """0: the built-in policy."""
    policy: PolicyFile
    redactor: Redactor


class ActivePolicies:
    """The rulings of all tenants; each is made once for a version. Use from one thread."""

    def __init__(self, key: bytes, policies: ConsentSource, consents: ConsentSource) -> None:
        """`key` is what the tenants' pseudonym keys are derived from; the tables may change at any time."""
        self._key, self._policies, self._consents = key, policies, consents
        self._made: dict[str, tuple[str, ActivePolicy]] = {}

    def of(self, tenant: str) -> ActivePolicy:
        """How a tenant's records are governed.

        Raises:
            CannotGovern: its policy is damaged, or needs a package that is not installed here.
        """
        record = self._policies.get(tenant) or self._policies.get(EVERY_TENANT)
        identity = "" if record is None else record["event_id"]
        made = self._made.get(tenant)
        if made is None or made[0] != identity:
            made = self._made[tenant] = identity, self._make(tenant, record)
        return made[1]

    def consent(self, ruling: ActivePolicy, event: Any) -> Consent:
        """What may be done with a step or feedback."""
        return effective(
            event["consent"],
            self._consents,
            tenant=event["tenant"],
            user=event["user"],
            agent=event.get("agent"),
            default=ruling.policy.consent.default,
            maximum=ruling.policy.consent.maximum,
        )

    def _make(self, tenant: str, record: Any) -> ActivePolicy:
        version = 0 if record is None else record["version"]
        try:
            policy = PolicyFile() if record is None else PolicyFile.parse(record["document"])
            redactor = Redactor(tenant_key(self._key, tenant), policy.redaction_options())
        except (PolicyError, ValueError) as error:
            raise CannotGovern(f"version {version} of the policy of {tenant} cannot be applied: {error}") from error
        return ActivePolicy(version, policy, redactor)
