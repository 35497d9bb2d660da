"""Choose the control policy of a scope from the topic `control-policies`, and load the own rules that it names."""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from stepstream.services.control.decide.own_rules import OwnRule
from stepstream.services.control.decide.policy import ControlPolicy, PolicyError
from stepstream.services.control.rule_packages import load_rules
from stepstream.services.control.scope import Scope
from stepstream.topics.events import ControlPolicy as PolicyRecord

log = logging.getLogger(__name__)


class PolicyInForce(NamedTuple):
    """Policy of a scope."""

    policy: ControlPolicy
    own: tuple[OwnRule, ...]
    """Rules of installed packages that it names; empty, too, if one is not installed: then the decision is to hold."""
    is_frozen: bool
    """True if the kill switch is set."""


class Policies:
    """The policies in force. Each file is parsed once, and its own rules are loaded once."""

    def __init__(self) -> None:
        self._parsed: dict[str, tuple[ControlPolicy, tuple[OwnRule, ...]] | None] = {}

    def find(self, scope: Scope, records: Iterable[PolicyRecord]) -> PolicyInForce | None:
        """Return the policy of a scope; None: no policy covers it.

        Of several, one that names agents or models goes before one for all; then the first by name.
        """
        found = []
        for record in records:
            parsed = self._parse(record)
            if parsed is not None and parsed[0].covers(*scope):
                is_general = parsed[0].agents == ("*",) and parsed[0].models == ("*",)
                found.append((is_general, record["name"], parsed, record["frozen"]))
        if not found:
            return None
        chosen = min(found, key=lambda one: one[:2])
        # The kill switch of any policy of the tenant that covers the scope counts.
        return PolicyInForce(*chosen[2], any(one[3] for one in found))

    def _parse(self, record: PolicyRecord) -> tuple[ControlPolicy, tuple[OwnRule, ...]] | None:
        if record["event_id"] not in self._parsed:
            try:
                policy = ControlPolicy.parse(record["document"])
                self._parsed[record["event_id"]] = policy, self._load(record, policy)
            except PolicyError as error:
                log.error("ignored control policy %s of tenant %s: %s", record["name"], record["tenant"], error)
                self._parsed[record["event_id"]] = None
        return self._parsed[record["event_id"]]

    def _load(self, record: PolicyRecord, policy: ControlPolicy) -> tuple[OwnRule, ...]:
        try:
            return load_rules(policy, record["document"])
        except PolicyError as error:
            log.error("control policy %s of tenant %s decides to hold: %s", record["name"], record["tenant"], error)
            return ()
