"""Fold the log of decisions and acts into the `History` of a scope. Pure.

The fold depends neither on the order of the records nor on repeated ones: it sorts by time and id.
"""

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast

from stepstream.analytics.estimate import Estimate
from stepstream.services.control.approvals import STARTED, act_order
from stepstream.services.control.decide.records import (
    SHADOW_DIFFERENCE,
    SHADOW_WORSE,
    Canary,
    History,
    Lever,
    Past,
    Promotion,
    Shadow,
)
from stepstream.services.control.scope import Scope, Serving, scope_of
from stepstream.services.control.signatures import TrustedKeys
from stepstream.topics.catalogue import APPROVALS, DECISION_ACTS, DECISIONS
from stepstream.topics.events import Approval, Decision, DecisionAct, Harness
from stepstream.versions.harnesses import lineage, served_harnesses

AUTHOR = "control plane"
"""Author of the records that the controller writes."""


@dataclass(slots=True)
class DecisionLog:
    """Records of `decisions`, `decision-acts` and `approvals`."""

    pulls: dict[str, Decision] = field(default_factory=dict)
    """Decisions other than `hold`, by id."""
    holds: dict[Scope, Decision] = field(default_factory=dict)
    """Newest decision to hold of each scope."""
    acts: dict[str, dict[str, DecisionAct]] = field(default_factory=dict)
    """Acts by decision and id."""
    answers: dict[str, dict[str, Approval]] = field(default_factory=dict)
    """Answers by decision and id."""
    keys: TrustedKeys = field(default_factory=TrustedKeys)
    """Keys whose signatures make an answer count."""

    def add(self, topic: str, record: Any) -> None:
        """Add one record."""
        if topic == DECISIONS:
            self._add_decision(record)
        elif topic == DECISION_ACTS:
            self.acts.setdefault(record["decision_id"], {})[record["event_id"]] = record
        elif topic == APPROVALS:
            answers = self.answers.setdefault(record["decision_id"], {})
            answers[record["event_id"]] = self.keys.chosen(answers.get(record["event_id"]), record)

    def _add_decision(self, decision: Decision) -> None:
        if decision["action"] != "hold":
            self.pulls[decision["event_id"]] = decision
            return
        before = self.holds.get(scope_of(decision))
        if before is None or _order(before) < _order(decision):
            self.holds[scope_of(decision)] = decision

    def pulls_of(self, scope: Scope) -> list[Decision]:
        """Return the decisions of a scope other than `hold`, the oldest first."""
        return sorted((one for one in self.pulls.values() if scope_of(one) == scope), key=_order)

    def newest_of(self, scope: Scope) -> Decision | None:
        """Return the newest decision of a scope, also `hold`; None: there is none."""
        found = [one for one in (*self.pulls_of(scope), self.holds.get(scope)) if one is not None]
        return max(found, key=_order, default=None)

    def scopes_since(self, since_us: int) -> list[Scope]:
        """Return the scopes with a decision since a time, in microseconds, by name."""
        decisions = (*self.pulls.values(), *self.holds.values())
        return sorted({scope_of(one) for one in decisions if one["occurred_at_us"] >= since_us})

    def in_order(self) -> list[Decision]:
        """Return the decisions other than `hold` of all scopes, the oldest first."""
        return sorted(self.pulls.values(), key=_order)

    def acts_of(self, decision_id: str) -> list[DecisionAct]:
        """Return the acts of a decision, the oldest first."""
        return sorted(self.acts.get(decision_id, {}).values(), key=act_order)

    def answers_to(self, decision_id: str) -> list[Approval]:
        """Return the answers to a decision, the oldest first; before its first act, forged ones are `refused`."""
        answers = sorted(self.answers.get(decision_id, {}).values(), key=_order)
        return answers if self.acts.get(decision_id) else self.keys.checked(answers)

    def newly_refused(self, decision_id: str) -> list[Approval]:
        """Return the answers that `answers_to` refuses, and the log does not."""
        known = self.answers.get(decision_id, {})
        return [one for one in self.answers_to(decision_id) if one["refused"] and not known[one["event_id"]]["refused"]]

    def state_of(self, decision: Decision) -> str:
        """Return the state of the newest act; without one, `awaiting`."""
        acts = self.acts_of(decision["event_id"])
        return acts[-1]["state"] if acts else "awaiting"


def history_of(
    scope: Scope,
    log: DecisionLog,
    serving: Serving,
    *,
    owns_weights: bool,
    frozen: bool = False,
    weights_frozen: bool = False,
) -> History:
    """Return the history of a scope.

    Args:
        scope: whose.
        log: all records up to now.
        serving: what serves the scope.
        owns_weights: True if a canary and a promotion of the model's weights are this scope's to judge.
        frozen: True if the kill switch is set.
        weights_frozen: True if it is set for another agent that the weights serve.
    """
    pulls = log.pulls_of(scope)
    past = tuple(one for one in (_past(pull, log.state_of(pull)) for pull in pulls) if one is not None)
    done = [one for one in past if one.state == "done"]
    canary = _harness_canary(serving, done)
    promotions = [_harness_promotion(serving, done)]
    if owns_weights:
        canary = _weights_canary(serving, done, log) or canary
        promotions.append(_weights_promotion(serving, done))
    newest = max((one for one in promotions if one is not None), key=lambda one: one.at_us, default=None)
    return History(past, canary, newest, frozen, weights_frozen)


def weights_owner(
    model: str, log: DecisionLog, serving: Serving, scopes: Iterable[Scope], enabled: Collection[Scope]
) -> Scope | None:
    """Return the scope that judges a model's canary and promotion: agents of several tenants may use one model.

    It is the one whose decision put the version out; of versions that a person put out, the first scope by name. One
    whose policy disables weights only ends the canary that it began; it is the owner where no scope enables them, too.

    Args:
        model: the model.
        log: all records up to now.
        serving: what serves the model.
        scopes: those that a policy covers.
        enabled: those whose policy enables the lever `weights`.
    """
    served = serving.versions.served
    version = served.canary if served.canary is not None else served.stable
    matching = [
        one
        for one in sorted(log.pulls.values(), key=_order)
        if one["model"] == model and one["lever"] == "weights" and one["action"] in {"canary", "widen", "promote"}
        if one["target"] == str(version) and log.state_of(one) == "done"
    ]
    known = sorted(scope for scope in scopes if scope.model == model)
    origin = scope_of(matching[-1]) if matching else None
    if origin in known and (origin in enabled or served.canary is not None):
        return origin
    return next((scope for scope in known if scope in enabled), known[0] if known else None)


def canary_shares(past: Sequence[Past], decisions: Iterable[Decision], canary: Canary) -> list[tuple[int, float]]:
    """Return the shares of a running canary: (time, share), the oldest first."""
    done = {one.id for one in past if one.state == "done"}
    found = [
        (one["occurred_at_us"], one["share"])
        for one in decisions
        if one["event_id"] in done and one["action"] in {"canary", "widen"} and one["target"] == canary.version
        if one["occurred_at_us"] >= canary.started_us
    ]
    return sorted(found) or [(canary.started_us, canary.share)]


def _past(decision: Decision, state: str) -> Past | None:
    """Return a decision as the history has it; None: it came to nothing, since it was not approved and done in time."""
    if state == "expired":
        return None
    # A failed act counts as a pull: the limits of the lever delay the next attempt. It tried nothing.
    states = {"undone": "rejected", STARTED: "awaiting", **{one: one for one in ("awaiting", "rejected", "failed")}}
    return Past(
        decision["event_id"],
        decision["occurred_at_us"],
        cast(Lever, decision["lever"]),
        cast(Any, decision["action"]),
        decision["target"],
        decision["watched_until_us"],
        cast(Any, states.get(state, "done")),
    )


def _weights_canary(serving: Serving, done: Sequence[Past], log: DecisionLog) -> Canary | None:
    served, rollout = serving.versions.served, serving.versions.rollout
    if served.canary is None or rollout is None or served.stable is None:
        return None
    version = str(served.canary)
    started = _newest(done, "canary", version)
    began_us = rollout["occurred_at_us"] if started is None else started.at_us
    shadow = None if started is None else shadow_of(log.acts_of(started.id))
    if started is not None and served.canary_share and not log.pulls[started.id]["share"]:
        # The tests begin when it serves the first trajectory: those assigned before have no counterpart.
        widened = (one.at_us for one in done if (one.action, one.target) == ("widen", version))
        began_us = min((at_us for at_us in widened if at_us >= began_us), default=rollout["occurred_at_us"])
    return Canary("weights", version, str(served.stable), began_us, served.canary_share, shadow=shadow)


def shadow_of(acts: Iterable[DecisionAct]) -> Shadow | None:
    """Return the result of a shadow replay; None: no act of the canary's decision has one."""
    figures = next((one["evidence"] for one in acts if one["evidence"]), None)
    if figures is None:
        return None
    by_name = {one["name"]: one for one in figures}
    found = by_name[SHADOW_DIFFERENCE]
    tasks = by_name[SHADOW_WORSE]["n"]
    difference = Estimate(found["value"], found["low"], found["high"], found["n"], tasks, found["reason"])
    return Shadow(difference, by_name[SHADOW_WORSE]["value"] or 1.0)


def _harness_canary(serving: Serving, done: Sequence[Past]) -> Canary | None:
    served = served_harnesses(serving.harnesses.values())
    if served.canary is None:
        return None
    version = served.canary["version"]
    started = _newest(done, "canary", version)
    origin = _canary_origin(serving, done, served.canary)
    return Canary(
        "prompt" if origin is None or origin.lever is None else origin.lever,
        version,
        "" if served.stable is None else served.stable["version"],
        served.canary["occurred_at_us"] if started is None else started.at_us,
        served.canary["share"],
    )


def _canary_origin(serving: Serving, done: Sequence[Past], canary: Harness) -> Past | None:
    """Return the decision that began a canary, also if changes of tools have replaced its version since."""
    for version in lineage(serving.harnesses, canary["version"]):
        started = _newest(done, "canary", version["version"])
        if started is not None or version["proposer"] != AUTHOR:
            return started
    return None


def _weights_promotion(serving: Serving, done: Sequence[Past]) -> Promotion | None:
    served, rollout = serving.versions.served, serving.versions.rollout
    if rollout is None or served.follows_newest or served.stable is None or served.previous_stable is None:
        return None
    own = _newest(done, "promote", str(served.stable))
    if own is None and rollout["action"] != "promote":
        return None  # a person promoted it, and a later record replaced that one
    at_us, decision_id = (rollout["occurred_at_us"], "") if own is None else (own.at_us, own.id)
    return Promotion("weights", str(served.stable), str(served.previous_stable), at_us, decision_id)


def _harness_promotion(serving: Serving, done: Sequence[Past]) -> Promotion | None:
    """Return the promotion of the stable version, also if changes of tools have replaced that version since."""
    stable = served_harnesses(serving.harnesses.values()).stable
    passed: set[str] = set()
    for version in [] if stable is None else lineage(serving.harnesses, stable["version"]):
        passed.add(version["version"])
        own = _newest(done, "promote", version["version"])
        if own is None and version["author"] == AUTHOR:
            if version["proposer"] != AUTHOR:
                return None
            continue  # made to disable or roll back a tool
        at_us, decision_id = (version["occurred_at_us"], "") if own is None else (own.at_us, own.id)
        lever = "prompt" if own is None or own.lever is None else own.lever
        return Promotion(lever, version["version"], _version_without(serving, passed), at_us, decision_id)
    return None


def _version_without(serving: Serving, versions: Set[str]) -> str:
    """Return the version that serves once these are taken back; empty: the agent's own calls."""
    before = served_harnesses(one for one in serving.harnesses.values() if one["version"] not in versions).stable
    return "" if before is None else before["version"]


def _newest(done: Sequence[Past], action: str, target: str) -> Past | None:
    return next((one for one in reversed(done) if one.action == action and one.target == target), None)


def _order(record: Decision | Approval) -> tuple[int, str]:
    return record["occurred_at_us"], record["event_id"]
