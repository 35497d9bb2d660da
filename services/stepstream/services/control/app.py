"""Decide for each scope at an interval, and publish each decision with what does it in one transaction.

1. Read decisions, acts and answers to the end of the log, and wait until the compacted topics are current.
2. End decisions that waited for people: done, rejected or expired.
3. Build the snapshot of each scope that a policy covers, and decide.
4. Publish decision, act and the records that do it together. Killed before the commit: nothing took effect.
"""

import logging
import re
from collections.abc import Iterable, Sequence

from stepstream.config import Settings
from stepstream.services.control import acts, metrics
from stepstream.services.control.acts import Record
from stepstream.services.control.approvals import approval_state, newest_decision_id
from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.event import event_of
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.history import DecisionLog, canary_shares, history_of, weights_owner
from stepstream.services.control.log import ControlLog
from stepstream.services.control.policies import Policies
from stepstream.services.control.queries import StoreQueries
from stepstream.services.control.scope import Scope, Serving
from stepstream.services.control.sink_position import SinkPosition
from stepstream.services.control.snapshot import outcomes_since, snapshot_of
from stepstream.services.control.task_weights import edge_of_ability
from stepstream.topics.events import Decision
from stepstream.topics.exclusive_producer import ExclusiveProducer
from stepstream.topics.ids import now_us

log = logging.getLogger(__name__)

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class Controller:
    """The controller while it is the only one. Use it from one thread."""

    def __init__(
        self,
        settings: Settings,
        control_log: ControlLog,
        producer: ExclusiveProducer,
        queries: StoreQueries,
        position: SinkPosition,
    ) -> None:
        """Take what `main` has opened; the producer has taken over its id."""
        self._settings, self._log, self._producer = settings, control_log, producer
        self._queries, self._position = queries, position
        self._policies = Policies()
        self._task_weights: dict[Scope, dict[str, float]] = {}
        """Weights of task families by scope, of the newest statistics."""

    def run_once(self) -> None:
        """Decide once for each scope.

        Raises:
            Fenced: another controller took over; nothing of the last transaction took effect.
            StoreUnavailableError, ClickHouseError: the store does not answer.
            KafkaException: Kafka does not answer.
        """
        self._log.read()
        at_us = now_us()
        scopes = self._queries.scopes(at_us - round(self._settings.control.window_s * 1e6))
        covered = [(scope, found) for scope in scopes if (found := self._policies.find(scope, self._log.policies()))]
        metrics.SCOPES.set(len(covered))
        self._end_waiting()
        for scope, (policy, is_frozen) in covered:
            self._decide(scope, policy, is_frozen, [scope for scope, _ in covered])

    def _end_waiting(self) -> None:
        """Do, reject or let expire the decisions that waited for people."""
        known: DecisionLog = self._log.decisions
        waiting = [one for one in known.pulls.values() if known.state_of(one) == "awaiting"]
        metrics.AWAITING.set(len(waiting))
        for decision in sorted(waiting, key=lambda one: (one["occurred_at_us"], one["event_id"])):
            at_us, identity = now_us(), decision["event_id"]
            newest = newest_decision_id(known.in_order(), decision)
            state = approval_state(decision, known.answers_to(identity), known.acts_of(identity), at_us, newest)
            if state == "approved":
                scope = _scope(decision)
                weights = self._task_weights.get(scope)
                self._publish(acts.do(decision, self._log.serving(scope), at_us, weights))
            elif state == "rejected":
                self._publish([acts.end(decision, "rejected", at_us, reason="a person rejected it")])
            elif state == "expired":
                self._publish([acts.end(decision, "expired", at_us, reason="nobody answered in time")])

    def _decide(self, scope: Scope, policy: ControlPolicy, is_frozen: bool, scopes: Sequence[Scope]) -> None:
        known, serving = self._log.decisions, self._log.serving(scope)
        owns = weights_owner(scope.model, known, serving, scopes) == scope
        if owns and policy.levers["weights"].enabled and (fixed := acts.fix_version(scope.model, serving, now_us())):
            self._publish([fixed])
            serving = self._log.serving(scope)
        history = history_of(scope, known, serving, owns_weights=owns, frozen=is_frozen)
        at_us = now_us()
        since_us = outcomes_since(history, at_us, self._settings.control.window_s)
        promoted_us = None if history.promotion is None else history.promotion.at_us
        position = self._position.ask(at_us)
        found = self._queries.statistics(scope, position, at_us, since_us, promoted_us)
        self._task_weights[scope] = edge_of_ability(found.trained)
        shares = canary_shares(history.decisions, known.pulls_of(scope), history.canary) if history.canary else ()
        snapshot = snapshot_of(
            scope,
            at_us,
            since_us,
            found,
            serving,
            history,
            shares=shares,
            owns_weights=owns,
            open_tests=self._log.open_tests(scopes),
        )
        decision = event_of(decide(snapshot, history, policy))
        if records := self._records(decision, scope, serving):
            self._publish(records)

    def _records(self, decision: Decision, scope: Scope, serving: Serving) -> list[Record]:
        """Return what to publish; nothing for a `hold` like the one before."""
        itself = acts.decision_record(decision)
        if decision["action"] == "hold":
            before = self._log.decisions.holds.get(scope)
            newer = self._log.decisions.pulls_of(scope)[-1:]
            is_repeated = before is not None and same_hold(before, decision, self._settings.control.hold_every_s)
            if is_repeated and before is not None and not any(_is_after(one, before) for one in newer):
                return []
            return [itself]
        if decision["approvals"]:
            return [itself]
        return [itself, *acts.do(decision, serving, decision["occurred_at_us"], self._task_weights.get(scope))]

    def _publish(self, records: Iterable[Record]) -> None:
        """Publish records in one transaction, and fold them."""
        sent = list(records)
        for record in sent:
            self._producer.send(record.topic, record.key, record.value)
        self._producer.flush()
        self._log.add_own(sent)
        metrics.count(sent)
        for record in sent:
            log.info("%s %s", record.topic, describe(record))


def same_hold(before: Decision, decision: Decision, every_s: float) -> bool:
    """Return True if a `hold` repeats another one: the reason is equal up to its numbers, and that is recent."""
    is_recent = decision["occurred_at_us"] - before["occurred_at_us"] < every_s * 1e6
    alike = _NUMBER.sub("#", before["reason"]) == _NUMBER.sub("#", decision["reason"])
    return is_recent and alike and before["policy_hash"] == decision["policy_hash"]


def describe(record: Record) -> str:
    """Return a record in words, for the log."""
    value = record.value
    if "decision_id" in value and "state" in value:
        return f"{value['state']}: {value['description'] or value['reason']}"
    action = value.get("action", value.get("state", ""))
    return f"{action} {value.get('target', '')}: {value.get('reason', '')}"


def _is_after(decision: Decision, other: Decision) -> bool:
    return decision["occurred_at_us"] > other["occurred_at_us"]


def _scope(decision: Decision) -> Scope:
    return Scope(decision["tenant"], decision["agent"], decision["model"])
