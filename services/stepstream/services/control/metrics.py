"""Count in the controller's metrics."""

from collections.abc import Iterable

from stepstream.core.metrics import services
from stepstream.services.control.acts import Record
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS

LEADER = services.CONTROL_LEADER.create()
SCOPES = services.CONTROL_SCOPES.create()
AWAITING = services.CONTROL_AWAITING.create()
CYCLE = services.CONTROL_CYCLE_SECONDS.create()
FAILED = services.CONTROL_FAILED_CYCLES.create()
_DECISIONS = services.CONTROL_DECISIONS.create()
_ACTS = services.CONTROL_ACTS.create()


def count(records: Iterable[Record]) -> None:
    """Count published decisions and acts."""
    for record in records:
        if record.topic == DECISIONS:
            _DECISIONS.labels(record.value["action"], record.value["lever"] or "").inc()
        elif record.topic == DECISION_ACTS:
            _ACTS.labels(record.value["state"]).inc()
