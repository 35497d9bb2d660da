"""Judge a running canary: promote, take back, widen or wait, by tests that are valid at every look. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from stepstream.analytics import betting, bootstrap
from stepstream.analytics.estimate import FEW_TASKS, Estimate, undefined
from stepstream.analytics.production import lift
from stepstream.analytics.success import Attempts, pass_hat_k
from stepstream.services.control.decide.policy import CanaryPolicy
from stepstream.services.control.decide.records import (
    CANARY,
    NO_RESULT,
    SHADOW_DIFFERENCE,
    SHADOW_WORSE,
    UNJUDGED,
    Action,
    Canary,
    Evidence,
    Finding,
    Outcome,
    Past,
    Shadow,
    Snapshot,
    evidence,
    rounded,
)

MIN_FOR_BUDGET = 10
_GROSS = 0.2
"""Share of the capital of the harm test that bets on gross harm."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Cluster of dependent trajectories on one track: their mean counts once."""

    success: float | None
    """None: one of its trajectories is still open."""
    per_canary: int
    n: int


@dataclass(frozen=True, slots=True)
class State:
    """Statistics of a canary. E-values are the largest over time."""

    better: float
    """E-value against "the canary is no better"."""
    not_worse: float
    """E-value against "the canary is worse by the margin or more"."""
    worse: float
    """E-value against "the canary is no worse"."""
    harm: float
    """E-value against "the share of harmed trajectories is within the limit"."""
    difference: Estimate
    """Success of canary minus stable, with the bounds that are valid at every look."""
    lost: float
    """Successes lost so far: expected at the stable rate, minus the canary's."""
    canary: Attempts
    stable: Attempts
    compared: int
    """Trajectories of the canary in the tests. Others wait for an open trajectory that was assigned before them."""
    reliability_falls: bool
    """True if pass^k is lower than the stable version's beyond chance."""


def units(outcomes: Sequence[Outcome], track: str) -> list[Unit]:
    """Return the track's units by order of the first assignment, without trajectories that were never judged."""
    merged: list[Unit] = []
    clusters: dict[str, tuple[int, list[Outcome]]] = {}
    for outcome in outcomes:
        if outcome.track != track or outcome.failure == UNJUDGED:
            continue
        if outcome.cluster in clusters:
            clusters[outcome.cluster][1].append(outcome)
            continue
        if outcome.cluster:
            clusters[outcome.cluster] = len(merged), [outcome]
        merged.append(_independent(outcome.success, outcome.per_canary))
    for place, members in clusters.values():
        known = [float(member.success) for member in members if member.success is not None]
        mean = sum(known) / len(members) if len(known) == len(members) else None
        merged[place] = Unit(mean, members[0].per_canary, len(members))
    return merged


@lru_cache(1024)
def _independent(success: bool | None, per_canary: int) -> Unit:
    """Return the unit of one trajectory. There are few that differ, and a canary has thousands."""
    return Unit(None if success is None else float(success), per_canary, 1)


def state_of(outcomes: Sequence[Outcome], policy: CanaryPolicy, alpha: float) -> State:
    """Return the statistics of a canary over the outcomes since its start, by order of assignment."""
    canary, stable = units(outcomes, "canary"), units(outcomes, "stable")
    ended = [one for one in outcomes if one.track == "canary" and (one.success is not None or one.failure == UNJUDGED)]
    ks = [unit.per_canary for unit in canary]
    differences = betting.pair([unit.success for unit in canary], [unit.success for unit in stable], ks)
    counts = betting.count(differences)
    closed = {
        track: [one for one in outcomes if one.track == track and one.success is not None]
        for track in ("canary", "stable")
    }
    tried, served = (Attempts(len(ones), sum(bool(one.success) for one in ones)) for ones in closed.values())
    expected = served.successes / served.n if served.n else 0.0
    reversed_differences = [-x for x in differences]
    return State(
        better=_evidence(differences, 0.0),
        not_worse=_evidence(differences, -policy.margin),
        worse=_evidence(reversed_differences, 0.0),
        harm=_harm(ended, policy.harm_limit),
        difference=_difference(counts, len(differences), alpha),
        lost=max(0.0, expected * tried.n - tried.successes),
        canary=tried,
        stable=served,
        compared=sum(unit.n for unit in canary[: len(differences)]),
        reliability_falls=_reliability_falls(closed["canary"], closed["stable"], policy.k),
    )


def judge(snapshot: Snapshot, canary: Canary, policy: CanaryPolicy, decisions: Sequence[Past] = ()) -> Finding:
    """Return the action on a running canary, `hold` included. α is divided by the tests that run at once.

    One that serves nobody is judged by its shadow replay. Else in this order: harm, evidence that it is worse, the
    budget of losses; then the end, if a person rejected its promotion; then promotion, unless reliability falls or the
    last version that a person approved was better; then the next share; then the end without a result.

    Args:
        snapshot: statistics since the canary's start.
        canary: version under test.
        policy: its limits.
        decisions: earlier decisions of the agent.
    """
    if not canary.share:
        return _judge_shadow(canary, policy)
    alpha = policy.alpha / max(1, snapshot.open_tests)
    state = state_of(snapshot.outcomes, policy, alpha)
    action, reason, rule = *_verdict(state, canary, policy, alpha), CANARY
    if action != "rollback" and (rejected := _rejected_promotion(canary, decisions)) is not None:
        action, rule, reason = "rollback", NO_RESULT, f"a person rejected its promotion (decision {rejected.id})"
    elif action == "hold" and state.compared >= policy.max_trajectories:
        action, rule, reason = "rollback", NO_RESULT, f"no improvement after {state.compared} trajectories"
    target = {"promote": canary.version, "widen": canary.version, "rollback": canary.parent}.get(action, "")
    return Finding(
        rule, canary.lever, action, target, reason, _figures(state, canary), canary.parent, safety=action == "rollback"
    )


def _judge_shadow(canary: Canary, policy: CanaryPolicy) -> Finding:
    """Return the action on a canary that serves nobody: wait for its replay, take it back, or let it serve a share."""
    shadow, action, rule, target = canary.shadow, "widen", CANARY, canary.version
    if shadow is None:
        reason = "the shadow replay has not ended"
        action, target = ("hold", "") if policy.shadow != "off" else ("widen", canary.version)
    elif shadow.difference.value is None and policy.shadow == "required":
        reason = f"the shadow replay was not possible: {shadow.difference.reason}"
        action, rule, target = "rollback", NO_RESULT, canary.parent
    elif shadow.difference.value is None:
        reason = f"it serves without a shadow replay, which was not possible: {shadow.difference.reason}"
    elif shadow.worse >= 1 / policy.rollback_alpha:
        reason = "it is worse than its parent on recorded prompts"
        action, target = "rollback", canary.parent
    else:
        reason = "it is not clearly worse than its parent on recorded prompts"
    figures = () if shadow is None else shadow_figures(shadow)
    safety = action == "rollback"
    return Finding(rule, canary.lever, cast(Action, action), target, reason, figures, canary.parent, safety=safety)


def _rejected_promotion(canary: Canary, decisions: Sequence[Past]) -> Past | None:
    """Return the decision to promote the canary that a person rejected since its start; None: there is none."""
    about = ("promote", canary.lever, canary.version, "rejected")
    found = (one for one in decisions if (one.action, one.lever, one.target, one.state) == about)
    return next((one for one in found if one.at_us >= canary.started_us), None)


def compared(differences: Iterable[float], n: int | None = None, left_out: int = 0) -> Shadow:
    """Return the result of a shadow replay.

    Args:
        differences: for each task, the version's mean score minus its parent's, in [−1, 1].
        n: prompts that both have a score for; None: one a task.
        left_out: prompts without a score.
    """
    values = [float(one) for one in differences]
    if len(values) < FEW_TASKS:
        reason = f"{len(values)} tasks have a score, {FEW_TASKS} are needed"
        return Shadow(undefined(reason, n or len(values), len(values), left_out))
    difference = bootstrap.mean(values, n=n or len(values), left_out=left_out)
    return Shadow(difference, betting.e_value(Counter(-one for one in values)))


def shadow_figures(shadow: Shadow) -> tuple[Evidence, ...]:
    """Return the result of a shadow replay as evidence."""
    difference = evidence(SHADOW_DIFFERENCE, shadow.difference)
    return difference, Evidence(SHADOW_WORSE, rounded(shadow.worse), n=shadow.difference.tasks)


def next_share(share: float, policy: CanaryPolicy) -> float | None:
    """Return the next share of the schedule; None: it is the last."""
    return next((larger for larger in policy.shares if larger > share + 1e-9), None)


def _verdict(state: State, canary: Canary, policy: CanaryPolicy, alpha: float) -> tuple[Action, str]:
    """Return the action and its reason."""
    guard = 1 / policy.rollback_alpha
    if state.harm >= guard:
        return "rollback", f"harmed more than {policy.harm_limit:g} of its trajectories"
    if state.worse >= guard:
        return "rollback", "it is worse than the stable version"
    if state.canary.n >= MIN_FOR_BUDGET and state.lost >= policy.harm_budget:
        return "rollback", f"it lost {state.lost:.0f} successes, the budget is {policy.harm_budget}"
    if state.better >= 1 / alpha:
        if state.reliability_falls:
            return "rollback", f"pass@1 rises while pass^{policy.k} falls"
        if canary.approved is not None and (lift(state.canary, canary.approved).high or 0.0) < 0:
            return "rollback", "it is worse than the last version that a person approved"
        return "promote", "it is better than the stable version"
    is_over = state.compared >= policy.max_trajectories
    if not is_over and state.not_worse >= 1 / alpha and next_share(canary.share, policy) is not None:
        return "widen", f"it is not worse by {policy.margin:g} or more"
    return "hold", f"the canary has no result after {state.compared} trajectories"


def _evidence(differences: Sequence[float], m: float) -> float:
    """Return the largest e-value over time."""
    return 1 / betting.always_valid_p(differences, m)


def _harm(outcomes: Sequence[Outcome], limit: float) -> float:
    """Return the largest e-value over time against a share of harm within the limit.

    A fifth of the capital bets on gross harm, and counts the first trajectory of each cluster only: two harmed ones of
    one user are no proof. So two of two harmed trajectories are enough at the default limit (E is 28), where METRICS F
    alone needs three. The chance of a false alarm stays that of the test: the mean of e-values is an e-value.
    """
    harmed, gross, counted, largest = 0, 0, 0, 1.0
    seen: set[str] = set()
    for n, outcome in enumerate(outcomes, 1):
        is_first = not outcome.cluster or outcome.cluster not in seen
        seen.add(outcome.cluster)
        counted += is_first
        if outcome.harmed:  # E rises only here
            harmed += 1
            gross += is_first
            e_value = betting.harm_e_value(harmed, n, limit)
            largest = max(largest, (1 - _GROSS) * e_value + _GROSS * betting.gross_harm_e_value(gross, counted, limit))
    return largest


def _difference(counts: Counter[float], n: int, alpha: float) -> Estimate:
    if not n:
        return undefined("no pair of trajectories is closed")
    mean = math.fsum(x * c for x, c in counts.items()) / n
    return Estimate(mean, betting.lower_bound(counts, alpha), betting.upper_bound(counts, alpha), n)


def _reliability_falls(canary: Sequence[Outcome], stable: Sequence[Outcome], k: int) -> bool:
    """Compare pass^k over clusters with k attempts or more; False where it is not defined."""
    figures = []
    for outcomes in (canary, stable):
        by_cluster: dict[str, list[bool]] = {}
        for outcome in outcomes:
            if outcome.cluster:
                by_cluster.setdefault(outcome.cluster, []).append(bool(outcome.success))
        figures.append(pass_hat_k([Attempts(len(ones), sum(ones)) for ones in by_cluster.values()], k))
    tried, served = figures
    if tried.high is None or served.low is None or tried.few or served.few:
        return False
    return tried.high < served.low


def _figures(state: State, canary: Canary) -> tuple[Evidence, ...]:
    e_values = {"better": state.better, "not_worse": state.not_worse, "worse": state.worse, "harm": state.harm}
    drift = () if canary.approved is None else (evidence("drift", lift(state.canary, canary.approved)),)
    return (
        evidence("difference", state.difference),
        *drift,
        *(Evidence(f"e_{name}", rounded(value), n=state.difference.n) for name, value in e_values.items()),
        Evidence("successes_lost", rounded(state.lost), n=state.canary.n),
    )
