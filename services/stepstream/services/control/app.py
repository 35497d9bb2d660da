"""Decide for each scope at an interval, and publish each decision with what does it in one transaction.

While a version is tried or was just promoted, its scope is decided on whenever the tables have grown.

1. Read decisions, acts and answers to the end of the log, and wait until the compacted topics are current.
2. End decisions that waited for people: done, rejected or expired.
3. Build the snapshot of each scope that a policy covers, and decide.
4. Publish decision, act and the records that do it together. Killed before the commit: nothing took effect.

A decision to propose is done by a search beside this loop (`proposals`).
"""

import logging
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from stepstream.config import Settings
from stepstream.core.process import Stop
from stepstream.services.control import acts, metrics
from stepstream.services.control.acts import Record
from stepstream.services.control.approvals import STARTED, approval_state, expiry_reason, newest_decision_id, uncounted
from stepstream.services.control.approved import approved_version
from stepstream.services.control.decide.decide import NO_STORE, decide, hold_without_store
from stepstream.services.control.decide.event import event_of
from stepstream.services.control.decide.records import EXPOSES, LEVERS, TAKES_BACK, WEIGHTS_FROZEN, History
from stepstream.services.control.history import DecisionLog, canary_shares, history_of, weights_owner
from stepstream.services.control.log import ControlLog
from stepstream.services.control.policies import Policies, PolicyInForce
from stepstream.services.control.proposals import Proposals, is_search
from stepstream.services.control.queries import STORE_FAULTS, StoreQueries
from stepstream.services.control.recording import Recording
from stepstream.services.control.revisions import Revisions
from stepstream.services.control.scope import Scope, Serving, scope_of
from stepstream.services.control.shadow_replays import ShadowReplays
from stepstream.services.control.sink_position import SinkPosition
from stepstream.services.control.snapshot import outcomes_since, snapshot_of
from stepstream.services.control.task_weights import edge_of_ability
from stepstream.services.control.webhook import Webhook
from stepstream.topics.catalogue import APPROVALS, DECISION_ACTS, DECISIONS
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
        proposals: Proposals,
        webhook: Webhook | None = None,
        shadows: ShadowReplays | None = None,
    ) -> None:
        """Take what `main` has opened; the producer has taken over its id."""
        self._settings, self._log, self._producer = settings, control_log, producer
        self._queries, self._position, self._proposals = queries, position, proposals
        self._policies, self._revisions = Policies(), Revisions()
        self._scopes: list[Scope] = []
        """Scopes of the last cycle."""
        self._with_weights: set[Scope] = set()
        """Those of them whose policy enables the lever `weights`."""
        self._watched: set[Scope] = set()
        """Scopes with a canary, or a promotion that is watched."""
        self._webhook, self._shadows = webhook, shadows or ShadowReplays(settings)
        control = settings.control
        self._recording = None if control.record is None else Recording(control.record, control.record_every_s)
        for decision in self._waiting_for_people():  # the one before may have ended between publishing and notifying
            self._notify(decision, "awaiting")

    def run_once(self) -> None:
        """Decide once for each scope; while the store does not answer, to hold.

        Raises:
            Fenced: another controller took over; nothing of the last transaction took effect.
            StoreUnavailableError, ClickHouseError: the store does not answer.
            KafkaException: Kafka does not answer.
        """
        self._cycle(None)

    def wait(self, stop: Stop) -> None:
        """Wait for the interval; meanwhile decide on the watched scopes whenever the tables have grown.

        Raises:
            Fenced, StoreUnavailableError, ClickHouseError, KafkaException: as `run_once`.
        """
        control, began = self._settings.control, time.monotonic()
        pause_s = control.canary_interval_s
        while (left_s := began + control.interval_s - time.monotonic()) > 0:
            if stop.wait(min(left_s, pause_s)):
                return
            if left_s <= pause_s or not self._watched or not self._position.has_moved():
                continue
            looked = time.monotonic()
            self._cycle(self._watched)
            # A slow store is asked half of the time at most.
            pause_s = max(control.canary_interval_s, time.monotonic() - looked)

    def _cycle(self, only: Collection[Scope] | None) -> None:
        """Decide once for the scopes of the last cycle that `only` names; None: for all, as the store has them now."""
        self._log.read()
        self._refuse_answers()  # first: once a decision has an act, signatures are not checked any more
        at_us = now_us()
        since_us = at_us - round(self._settings.control.window_s * 1e6)
        undecided: Sequence[Scope] = self._log.decisions.scopes_since(since_us)
        try:
            if only is None:
                undecided = self._queries.scopes(since_us)
                policies = dict(self._covered(undecided))
                self._scopes = list(policies)
                self._with_weights = {scope for scope, one in policies.items() if one.policy.levers["weights"].enabled}
                metrics.SCOPES.set(len(self._scopes))
                self._watched &= set(self._scopes)
            chosen = self._scopes if only is None else [scope for scope in self._scopes if scope in only]
            # Versions on trial first: the others take time, and wait for nothing.
            covered = self._covered(sorted(chosen, key=lambda scope: scope not in self._watched))
            undecided = ordered = [scope for scope, _ in covered]
            self._end_waiting()
            for number, (scope, in_force) in enumerate(covered):
                undecided = ordered[number:]
                self._decide(scope, in_force, self._scopes)
        except STORE_FAULTS:
            for scope, in_force in self._covered(undecided):
                self._hold_without_store(scope, in_force)
            raise

    def _covered(self, scopes: Iterable[Scope]) -> list[tuple[Scope, PolicyInForce]]:
        """Return the scopes that a policy covers."""
        return [(scope, found) for scope in scopes if (found := self._policies.find(scope, self._log.policies()))]

    def _hold_without_store(self, scope: Scope, in_force: PolicyInForce) -> None:
        """Publish the decision to hold, once for each outage: it is the newest of the scope until the store is back."""
        newest = self._log.decisions.newest_of(scope)
        before, at_us = "", now_us()
        if newest is not None:
            if newest["reason"] == NO_STORE:
                return
            before, at_us = newest["event_id"], max(at_us, newest["occurred_at_us"] + 1)
        decision = event_of(hold_without_store(scope, at_us, before, in_force.policy, in_force.own))
        self._publish([acts.decision_record(decision)])

    def _end_waiting(self) -> None:
        """Do, reject or let expire the decisions that waited for people; go on with the search for a proposal."""
        known: DecisionLog = self._log.decisions
        metrics.AWAITING.set(len(self._waiting_for_people()))
        for decision in self._waiting():
            at_us, identity = now_us(), decision["event_id"]
            newest = newest_decision_id(known.in_order(), decision)
            state = approval_state(decision, known.answers_to(identity), known.acts_of(identity), at_us, newest)
            fault = self._stop_reason(decision, at_us) if state == "approved" else ""
            if state == "approved" and is_search(decision):
                self._propose(decision, at_us, fault)
            elif state == "approved" and fault:
                self._publish([acts.end(decision, "failed", at_us, reason=fault)])
            elif state == "approved":
                serving = self._log.serving(scope_of(decision))
                self._publish(acts.do(decision, serving, at_us, self._task_weights(decision, at_us)))
            elif state == "rejected":
                self._publish([acts.end(decision, "rejected", at_us, reason="a person rejected it")])
            elif state == "expired":
                reason = expiry_reason(decision, known.answers_to(identity), newest)
                self._publish([acts.end(decision, "expired", at_us, reason=reason)])

    def _stop_reason(self, decision: Decision, at_us: int) -> str:
        """Return why a decision that was approved must not be done any more; empty: it may, or takes something back.

        The policy is asked again here: people, a crash or an outage may lie between decision and act.
        """
        if decision["action"] in TAKES_BACK:
            return ""
        found = self._policies.find(scope_of(decision), self._log.policies())
        if found is None:
            return "no control policy covers the agent any more"
        policy = found.policy
        if found.is_frozen or policy.freeze:
            return "the agent is frozen"
        if (
            decision["lever"] == "weights"
            and decision["action"] in EXPOSES
            and self._weights_frozen(scope_of(decision))
        ):
            return WEIGHTS_FROZEN
        if self._log.decisions.acts_of(decision["event_id"]):
            return ""  # a search that runs goes on
        lever = next(one for one in LEVERS if one == decision["lever"])
        if not policy.levers[lever].enabled:
            return f"the lever {lever} is disabled"
        return "quiet hours" if policy.is_quiet(at_us) else ""

    def _weights_frozen(self, scope: Scope) -> bool:
        """Return True if the kill switch is set for another agent that the model's weights serve.

        Weights have no track for each tenant: a canary would reach the trajectories of the frozen agent, too.
        """
        others = [one for one in self._scopes if one.model == scope.model and one != scope]
        return any(in_force.is_frozen for _, in_force in self._covered(others))

    def _propose(self, decision: Decision, at_us: int, fault: str) -> None:
        """Go on with the search for a proposal; a fault ends it."""
        serving = self._log.serving(scope_of(decision))
        if records := self._proposals.advance(decision, self._log.decisions, serving, at_us, fault):
            self._publish(records)

    def _refuse_answers(self) -> None:
        """Write again, with the reason, each answer that was accepted but did not count."""
        known = self._log.decisions
        for identity in list(known.answers):
            if (decision := known.pulls.get(identity)) is None:
                continue
            for answer in known.newly_refused(identity):
                self._publish([Record(APPROVALS, identity, answer)])
            for answer, fault in uncounted(decision, known.answers_to(identity), known.acts_of(identity)):
                self._publish([Record(APPROVALS, identity, {**answer, "refused": fault})])

    def _decide(self, scope: Scope, in_force: PolicyInForce, scopes: Sequence[Scope]) -> None:
        policy, own, is_frozen = in_force
        known, serving = self._log.decisions, self._log.serving(scope)
        owns = weights_owner(scope.model, known, serving, scopes, self._with_weights) == scope
        if owns and policy.levers["weights"].enabled and (fixed := acts.fix_version(scope.model, serving, now_us())):
            self._publish([fixed])
            serving = self._log.serving(scope)
        history = history_of(
            scope, known, serving, owns_weights=owns, frozen=is_frozen, weights_frozen=self._weights_frozen(scope)
        )
        history = self._with_approved(scope, history, serving)
        at_us = now_us()
        if owns and (replayed := self._shadows.advance(scope, history.canary, known, serving, at_us)):
            self._publish(replayed)
            return  # the result is judged at the next look
        is_watched = history.canary is not None or any(
            one.action == "promote" and one.watched_until_us > at_us for one in history.decisions
        )
        (self._watched.add if is_watched else self._watched.discard)(scope)
        since_us = outcomes_since(history, at_us, self._settings.control.window_s)
        promoted_us = None if history.promotion is None else history.promotion.at_us
        position = self._position.ask(at_us)
        harness = history.canary.version if history.canary is not None and history.canary.lever != "weights" else ""
        found = self._queries.statistics(scope, position, at_us, since_us, promoted_us, harness)
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
            revised=self._revisions.look(scope, found.outcomes),
        )
        decision = event_of(decide(snapshot, history, policy, own))
        records = self._records(decision, scope, serving)
        if self._recording is not None:
            self._recording.add(snapshot, history, is_new=bool(records))
        if records:
            self._publish(records)

    def _with_approved(self, scope: Scope, history: History, serving: Serving) -> History:
        """Add to a running canary the success of the last version that a person approved."""
        canary = history.canary
        if canary is None:
            return history
        by_hand = self._queries.promoted_by_hand(scope.model) if canary.lever == "weights" else ()
        found = approved_version(scope, canary, self._log.decisions, serving, by_hand)
        if found is None:
            return history
        attempts = self._queries.attempts_of(scope, canary, found)
        return replace(history, canary=replace(canary, approved=attempts))

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
        if decision["approvals"] or is_search(decision):
            return [itself]
        at_us = decision["occurred_at_us"]
        return [itself, *acts.do(decision, serving, at_us, self._task_weights(decision, at_us))]

    def _task_weights(self, decision: Decision, at_us: int) -> dict[str, float]:
        """Return the weights of task families for `resample`, of statistics up to a time; empty: any other action."""
        if decision["action"] != "resample":
            return {}
        return edge_of_ability(self._queries.trained(scope_of(decision), at_us))

    def _publish(self, records: Iterable[Record]) -> None:
        """Publish records in one transaction, and fold them."""
        sent = list(records)
        for record in sent:
            self._producer.send(record.topic, record.key, record.value)
        self._producer.flush()
        try:
            self._log.add_own(sent)
        finally:  # they are committed, and no later look would report them
            metrics.count(sent)
            for record in sent:
                log.info("%s %s", record.topic, describe(record))
                self._notify_about(record)

    def _waiting(self) -> list[Decision]:
        """Return the decisions that have not ended; one whose search runs first, then the oldest first."""
        known = self._log.decisions
        waiting = [one for one in known.in_order() if known.state_of(one) in ("awaiting", STARTED)]
        return sorted(waiting, key=lambda one: known.state_of(one) != STARTED)

    def _waiting_for_people(self) -> list[Decision]:
        """Return the decisions without an act that people must approve, the oldest first."""
        known = self._log.decisions
        return [one for one in self._waiting() if one["approvals"] and known.state_of(one) == "awaiting"]

    def _notify_about(self, record: Record) -> None:
        """Notify people of a decision that waits for them, and of the end of any decision."""
        value = record.value
        if record.topic == DECISIONS and value["approvals"] and value["action"] != "hold":
            self._notify(value, "awaiting")
        elif record.topic == DECISION_ACTS and value["state"] != STARTED and not value["evidence"]:
            decision = self._log.decisions.pulls[value["decision_id"]]
            self._notify(decision, value["state"], value["description"] or value["reason"])

    def _notify(self, decision: Decision, state: str, description: str = "") -> None:
        if self._webhook is not None:
            self._webhook.send(decision, state, description)


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
    if value.get("refused"):
        return f"{value['verdict']} by {value['author']} does not count: {value['refused']}"
    action = value.get("action", value.get("state", ""))
    return f"{action} {value.get('target', '')}: {value.get('reason', '')}"


def _is_after(decision: Decision, other: Decision) -> bool:
    return decision["occurred_at_us"] > other["occurred_at_us"]
