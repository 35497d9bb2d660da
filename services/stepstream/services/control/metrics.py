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
_WEBHOOK_MESSAGES = services.CONTROL_WEBHOOK_MESSAGES.create()
for _result in ("delivered", "refused", "given_up", "dropped"):
    _WEBHOOK_MESSAGES.labels(_result)  # from 0: the first failure of a process is an increase too
_DECISIONS = services.CONTROL_DECISIONS.create()
_ACTS = services.CONTROL_ACTS.create()
SEARCHING = services.CONTROL_SEARCHING.create()
_SEARCHES = services.CONTROL_SEARCHES.create()
_SEARCH_CALLS = services.CONTROL_SEARCH_CALLS.create()
_SEARCH_TOKENS = services.CONTROL_SEARCH_TOKENS.create()


def count(records: Iterable[Record]) -> None:
    """Count published decisions and acts."""
    for record in records:
        if record.topic == DECISIONS:
            _DECISIONS.labels(record.value["action"], record.value["lever"] or "").inc()
        elif record.topic == DECISION_ACTS:
            _ACTS.labels(record.value["state"]).inc()


def count_search(result: str, calls: int, tokens: int) -> None:
    """Count a search for a proposal that has ended, and what it spent."""
    _SEARCHES.labels(result).inc()
    _SEARCH_CALLS.inc(calls)
    _SEARCH_TOKENS.inc(tokens)


def count_message(result: str) -> None:
    """Count a message to the webhook."""
    _WEBHOOK_MESSAGES.labels(result).inc()
