"""Find the last version that a person approved, with which a canary is compared before it is promoted. Pure.

Each automatic promotion may be a little worse than its parent by chance; the comparison bounds the sum of such losses.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stepstream.services.control.decide.records import Canary
from stepstream.services.control.history import AUTHOR, DecisionLog
from stepstream.services.control.scope import Scope, Serving
from stepstream.topics.events import Decision


class ApprovedVersion(NamedTuple):
    """Version that serves all trajectories because a person said so."""

    at_us: int
    """Time of its promotion."""
    version: str


def approved_version(
    scope: Scope, canary: Canary, log: DecisionLog, serving: Serving, by_hand: Iterable[ApprovedVersion] = ()
) -> ApprovedVersion | None:
    """Return the last version that a person approved; None: there is none, or it is the canary's parent.

    The test against the parent covers the parent.

    Args:
        scope: agent and model of the canary.
        canary: the running canary.
        log: decisions, with the approved promotions.
        serving: what serves the scope, with the harnesses that people promoted.
        by_hand: promotions of weights by people.
    """
    is_weights = canary.lever == "weights"
    found = [
        ApprovedVersion(one["occurred_at_us"], one["target"])
        for one in log.pulls.values()
        if one["action"] == "promote" and one["approvals"] and _is_alike(one, scope, is_weights=is_weights)
        if log.state_of(one) == "done"
    ]
    found += by_hand if is_weights else _harnesses_by_hand(serving)
    newest = max(found, default=None)
    return None if newest is None or newest.version in {canary.version, canary.parent} else newest


def _is_alike(decision: Decision, scope: Scope, *, is_weights: bool) -> bool:
    """Return True if a decision is about versions of the same kind: of the model, or of the agent's harness."""
    if decision["tenant"] != scope.tenant or (decision["lever"] == "weights") != is_weights:
        return False
    return decision["model"] == scope.model if is_weights else decision["agent"] == scope.agent


def _harnesses_by_hand(serving: Serving) -> Iterator[ApprovedVersion]:
    for one in serving.harnesses.values():
        if one["state"] == "stable" and one["author"] != AUTHOR:
            yield ApprovedVersion(one["occurred_at_us"], one["version"])
