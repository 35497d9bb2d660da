"""Decide which lever to pull for an agent: from a snapshot, the history and a policy to one decision. Pure.

1. Incomplete, late or revised statistics: hold.
2. A canary runs: judge it; only a rule that takes something back may act beside it.
3. Diagnose, drop what a limit of the policy blocks, and take back before starting; then the cheapest lever first.
4. Nothing is left: hold, with the reason of every proposal that lost, and the figures of a running canary.
"""

from collections.abc import Sequence
from dataclasses import replace

from stepstream.analytics.sequential import minimum_detectable_effect
from stepstream.services.control.decide.canary import judge, next_share
from stepstream.services.control.decide.diagnosis import diagnose, mean_success
from stepstream.services.control.decide.gates import bad_input, blocked
from stepstream.services.control.decide.own_rules import OwnRule, ask, missing_rule, policy_hash
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import (
    CANARY_RULES,
    LEVERS,
    Alternative,
    Decision,
    Evidence,
    Finding,
    History,
    Lever,
    Snapshot,
    Source,
    inputs_digest,
    rounded,
)
from stepstream.topics.ids import derived_id

JOB = "control@1"
NO_STORE = "the statistics store does not answer"
"""Reason of `hold_without_store`. Users of a tenant read it, so it names no address and no query."""


def decide(snapshot: Snapshot, history: History, policy: ControlPolicy, own: Sequence[OwnRule] = ()) -> Decision:
    """Return the decision. Equal inputs give equal bytes, `hold` included. `own`: the loaded rules of the policy."""
    decision = replace(_choose(snapshot, history, policy, own), policy_hash=policy_hash(policy, own))
    origin = (inputs_digest(snapshot, history), decision.policy_hash, decision.rule, decision.action, decision.target)
    return replace(decision, id=derived_id(JOB, *origin, tenant=snapshot.tenant))


def hold_without_store(
    scope: tuple[str, str, str], at_us: int, before: str, policy: ControlPolicy, own: Sequence[OwnRule] = ()
) -> Decision:
    """Return the decision to hold while there are no statistics. Its id does not depend on the time.

    Args:
        scope: tenant, agent and model.
        at_us: time of the decision.
        before: id of the newest decision of the scope. Controllers that meet the same outage know the same one.
        policy: policy of the scope.
        own: the loaded rules of the policy.
    """
    snapshot = Snapshot(*scope, at_us=at_us, complete_until_us=0, source=Source("", ""))
    held = replace(_hold(NO_STORE, [], snapshot), policy_hash=policy_hash(policy, own))
    tenant, *names = scope
    return replace(held, id=derived_id(JOB, *names, before, NO_STORE, held.policy_hash, tenant=tenant))


def _choose(snapshot: Snapshot, history: History, policy: ControlPolicy, own: Sequence[OwnRule]) -> Decision:
    """Return the decision without id."""
    if fault := bad_input(snapshot, policy) or missing_rule(policy, own):
        return _hold(fault, [], snapshot)
    found = [*diagnose(snapshot, history, policy), *ask(snapshot, history, policy, own)]
    figures: tuple[Evidence, ...] = ()
    if history.canary is not None:
        verdict = judge(snapshot, history.canary, policy.canary, history.decisions)
        found.insert(0, verdict)
        figures = verdict.evidence
    lost: list[Alternative] = []
    allowed: list[Finding] = []
    for finding in found:
        if isinstance(finding, Alternative):
            lost.append(finding)
        elif finding.action == "hold":
            lost.append(_alternative(finding, finding.reason))
        elif reason := blocked(finding, snapshot, history, policy):
            lost.append(_alternative(finding, reason))
        else:
            allowed.append(finding)
    if not allowed:
        reason = lost[0].reason if lost else "no rule found anything to do"
        return replace(_hold(reason, lost, snapshot), evidence=_with_sources(figures, snapshot))
    allowed.sort(key=lambda one: _rank(one, policy))
    chosen, *others = allowed
    lost.extend(_alternative(other, _why(chosen, other, policy)) for other in others)
    return _decision(chosen, lost, snapshot, history, policy)


def _rank(finding: Finding, policy: ControlPolicy) -> tuple[bool, bool, float, float, int]:
    """Return the order of findings: take back first, a running canary's verdict next, then by cost and blast radius."""
    limits = policy.levers[finding.lever]
    lever = LEVERS.index(finding.lever)
    return not finding.safety, finding.rule not in CANARY_RULES, limits.cost, limits.blast_radius, lever


def _why(chosen: Finding, other: Finding, policy: ControlPolicy) -> str:
    """Return why another allowed finding lost."""
    if chosen.safety and not other.safety:
        return f"{chosen.rule} takes something back, which goes first"
    if policy.levers[chosen.lever].cost < policy.levers[other.lever].cost:
        return f"{chosen.lever} is cheaper than {other.lever}"
    return f"{chosen.rule} goes first; one decision at a time"


def _alternative(finding: Finding, reason: str) -> Alternative:
    return Alternative(finding.rule, finding.lever, finding.action, reason)


def _hold(reason: str, lost: list[Alternative], snapshot: Snapshot) -> Decision:
    return Decision(
        id="",
        tenant=snapshot.tenant,
        agent=snapshot.agent,
        model=snapshot.model,
        at_us=snapshot.at_us,
        action="hold",
        lever=None,
        target="",
        rule="",
        reason=reason,
        evidence=(),
        lost=tuple(lost),
        view=snapshot.source.view,
        position=snapshot.source.position,
        policy_hash="",
    )


def _decision(
    finding: Finding, lost: list[Alternative], snapshot: Snapshot, history: History, policy: ControlPolicy
) -> Decision:
    limits = policy.levers[finding.lever]
    share, effect = _exposure(finding, snapshot, history, policy)
    approvals = 0 if finding.safety else policy.approvals_for(finding.lever, finding.action)
    return replace(
        _hold(finding.reason, lost, snapshot),
        action=finding.action,
        lever=finding.lever,
        target=finding.target,
        rule=finding.rule,
        evidence=_with_sources(finding.evidence, snapshot),
        share=share,
        cost=limits.cost,
        blast_radius=_reach(finding, share, history),
        approvals=approvals,
        roles=limits.roles if approvals else (),
        watched_until_us=snapshot.at_us + round(limits.watch_s * 1e6),
        undo=_undo(finding),
        detectable_effect=effect,
    )


def _with_sources(figures: Sequence[Evidence], snapshot: Snapshot) -> tuple[Evidence, ...]:
    """Return figures with the view and window that each was computed from."""
    sources = [snapshot.sources.get(figure.name, snapshot.source) for figure in figures]
    return tuple(
        replace(figure, view=source.view, since_us=source.since_us, until_us=source.until_us)
        for figure, source in zip(figures, sources, strict=True)
    )


def _exposure(
    finding: Finding, snapshot: Snapshot, history: History, policy: ControlPolicy
) -> tuple[float, float | None]:
    """Return the share of a canary and the smallest difference that it can detect; (0, None) for other actions."""
    if finding.action == "widen" and history.canary is not None:
        return next_share(history.canary.share, policy.canary) or history.canary.share, None
    if finding.action != "canary":
        return 0.0, None
    share = policy.canary.shares[0]
    success, n = mean_success(snapshot), policy.canary.max_trajectories
    begin = 0.0 if finding.lever == "weights" and policy.canary.shadow != "off" else share
    if success.value is None:
        return begin, None
    # At 0 and 1 the variance would be 0, and any difference detectable: (c + ½)/(n + 1) as for the rates of strata.
    rate = (success.value * success.n + 0.5) / (success.n + 1) if success.value in {0.0, 1.0} else success.value
    alpha = 2 * policy.canary.alpha / max(1, snapshot.open_tests)  # the formula is two-sided
    return begin, rounded(minimum_detectable_effect(rate, n, round(n * (1 - share) / share), alpha=alpha))


def _reach(finding: Finding, share: float, history: History) -> float:
    """Return the share of served trajectories that an action reaches at once; training and searches reach none."""
    match finding.action:
        case "canary" | "widen":
            return share
        case "rollback" if finding.rule in CANARY_RULES:
            return 0.0 if history.canary is None else history.canary.share
        case "promote" | "rollback" | "disable":
            return 1.0
        case _:
            return 0.0


def _undo(finding: Finding) -> str:
    """Return the act that undoes a finding."""
    lever: Lever = finding.lever
    match finding.action:
        case "canary" | "widen":
            return f"end the canary: {lever} returns to {finding.parent}"
        case "promote":
            return f"roll {lever} back to {finding.parent}"
        case "rollback":
            return f"promote {finding.parent} again" if lever != "tools" else f"restore {finding.parent}"
        case "disable":
            return f"enable {finding.target}"
        case "train":
            return "pause learning"
        case "pause":
            return "resume learning"
        case "resample":
            return "restore the earlier task mix"
        case _:
            return "discard the proposal"
