"""Choose the control policy of a scope from the topic `control-policies`. Pure but for the log of invalid files."""

import logging
from collections.abc import Iterable

from stepstream.services.control.decide.policy import ControlPolicy, PolicyError
from stepstream.services.control.scope import Scope
from stepstream.topics.events import ControlPolicy as PolicyRecord

log = logging.getLogger(__name__)


class Policies:
    """The policies in force. Each file is parsed once."""

    def __init__(self) -> None:
        self._parsed: dict[str, ControlPolicy | None] = {}

    def find(self, scope: Scope, records: Iterable[PolicyRecord]) -> tuple[ControlPolicy, bool] | None:
        """Return the policy of a scope, and True if its kill switch is set; None: no policy covers it.

        Of several, one that names agents or models goes before one for all; then the first by name.
        """
        found = []
        for record in records:
            policy = self._parse(record)
            if policy is not None and policy.covers(*scope):
                is_general = policy.agents == ("*",) and policy.models == ("*",)
                found.append((is_general, record["name"], policy, record["frozen"]))
        if not found:
            return None
        chosen = min(found, key=lambda one: one[:2])
        # The kill switch of any policy of the tenant that covers the scope counts.
        return chosen[2], any(one[3] for one in found)

    def _parse(self, record: PolicyRecord) -> ControlPolicy | None:
        if record["event_id"] not in self._parsed:
            try:
                self._parsed[record["event_id"]] = ControlPolicy.parse(record["document"])
            except PolicyError as error:
                log.error("ignored control policy %s of tenant %s: %s", record["name"], record["tenant"], error)
                self._parsed[record["event_id"]] = None
        return self._parsed[record["event_id"]]
