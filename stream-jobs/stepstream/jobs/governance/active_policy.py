"""Look up the policy and the consent under which a tenant's records are governed now. Pure."""

from dataclasses import dataclass
from typing import Any

from stepstream.jobs.governance.consent import ConsentSource, effective_consent
from stepstream.jobs.governance.policy import EVERY_TENANT, PolicyError, PolicyFile
from stepstream.jobs.redaction import Redactor, tenant_key
from stepstream.topics.events import Consent


class CannotGovern(Exception):
    """A tenant's policy cannot be applied here, so its records wait; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """One version of a tenant's policy, with its redactor."""

    version: int
    """0: the built-in policy."""
    policy: PolicyFile
    redactor: Redactor


class ActivePolicies:
    """The active policy of each tenant; built once per version. Use from one thread."""

    def __init__(self, key: bytes, policies: ConsentSource, consents: ConsentSource) -> None:
        """`key` derives the tenants' pseudonym keys; the tables may change at any time."""
        self._key, self._policies, self._consents = key, policies, consents
        self._built: dict[str, tuple[str, ActivePolicy]] = {}

    def of(self, tenant: str) -> ActivePolicy:
        """Return a tenant's active policy: its own, else the one for all tenants, else the built-in one.

        Raises:
            CannotGovern: the policy is invalid, or needs a package that is not installed.
        """
        record = self._policies.get(tenant) or self._policies.get(EVERY_TENANT)
        identity = "" if record is None else record["event_id"]
        built = self._built.get(tenant)
        if built is None or built[0] != identity:
            built = self._built[tenant] = identity, self._build(tenant, record)
        return built[1]

    def _build(self, tenant: str, record: Any) -> ActivePolicy:
        version = 0 if record is None else record["version"]
        try:
            policy = PolicyFile() if record is None else PolicyFile.parse(record["document"])
            redactor = Redactor(tenant_key(self._key, tenant), policy.redaction_options())
        except (PolicyError, ValueError) as error:
            raise CannotGovern(f"version {version} of the policy of {tenant} cannot be applied: {error}") from error
        return ActivePolicy(version, policy, redactor)

    def consent(self, active: ActivePolicy, event: Any) -> Consent:
        """Return the effective consent of a step or feedback."""
        return effective_consent(
            event["consent"],
            self._consents,
            tenant=event["tenant"],
            user=event["user"],
            agent=event.get("agent"),
            default=active.policy.consent.default,
            maximum=active.policy.consent.maximum,
        )
