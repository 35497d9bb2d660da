"""Explain a control policy in words, one sentence a limit. Pure."""

import math
from collections.abc import Iterator

from stepstream.analytics.estimate import FEW_TASKS
from stepstream.analytics.sequential import minimum_detectable_effect
from stepstream.services.control.decide.policy import ControlPolicy, LeverPolicy, RulesPolicy
from stepstream.services.control.decide.records import Lever

_TRIED = "is tried on at most {:.0%} of trajectories"
_REACH: dict[Lever, str] = {"tools": "acts without a trial", "task_mix": "reaches training only"}
"""Levers without a canary."""
_WITHOUT_RULE: tuple[Lever, ...] = ("skills", "memory")
"""Levers that no built-in rule pulls."""
_HALF = 0.5
"""Success rate at which a canary detects the least."""


def describe(policy: ControlPolicy) -> list[str]:
    """Return the policy's meaning as sentences, limits in effect by default included."""
    return [*_scope(policy), *_rules(policy), *_levers(policy), *_canary(policy)]


def _scope(policy: ControlPolicy) -> Iterator[str]:
    agents, models = _joined(policy.agents), _joined(policy.models)
    yield f"It applies to tenant {policy.tenant}, agents {agents}, models {models}."
    if policy.freeze:
        yield "It is frozen: nothing is started; what runs may be taken back."
    if policy.quiet_hours:
        yield f"Nothing is started in quiet hours, {_joined(policy.quiet_hours)} UTC; harm is taken back at any time."
    yield f"All levers together are pulled at most {policy.decisions_per_day} times in 24 hours."
    yield f"It holds on fewer than {policy.min_trajectories} closed trajectories, or statistics older than " + (
        f"{policy.max_age_s:g} s, missing or revised."
    )


def _rules(policy: ControlPolicy) -> Iterator[str]:
    disabled = [name for name in RulesPolicy.model_fields if not getattr(policy.rules, name)]
    if disabled:
        yield f"These rules are disabled: {_joined(tuple(disabled))}."
    if policy.own_rules:
        yield f"It also asks these rules of installed packages: {_joined(policy.own_rules)}."
    yield (
        f"After a promotion it looks for a fall of success by {policy.change_effect:g} within task families; the "
        f"chance of a false alarm is at most {1000 * math.exp(-policy.change_limit):.2g} in 1,000 trajectories."
    )


def _levers(policy: ControlPolicy) -> Iterator[str]:
    ordered = sorted(policy.levers.items(), key=lambda each: (each[1].cost, each[1].blast_radius))
    enabled = [lever for lever, limits in ordered if limits.enabled]
    yield f"The cheapest lever with evidence goes first: {', '.join(enabled) or 'none is enabled'}."
    if idle := tuple(lever for lever in _WITHOUT_RULE if lever in enabled):
        pullers = f"only {_joined(policy.own_rules)} may pull" if policy.own_rules else "nothing pulls"
        yield f"No built-in rule is about {_joined(idle)}: {pullers} {'them' if len(idle) > 1 else 'it'}."
    for lever, limits in ordered:
        yield _lever(lever, limits, policy.approvals_for(lever))
    yield "A promotion, its rollback, and a tool that is disabled or rolled back reach all trajectories at once."
    if policy.approve_promotions:
        yield "At least one person must approve each promotion."
    yield "Nobody must approve an action of its rules that takes something back."


def _lever(lever: Lever, limits: LeverPolicy, approvals: int) -> str:
    if not limits.enabled:
        return f"{lever} is never pulled."
    approval = f"{approvals} of {_joined(limits.roles)} must approve" if approvals else "nobody must approve"
    undone = "" if limits.reversible else ", cannot be undone"
    return (
        f"{lever} costs {limits.cost:g}, {_REACH.get(lever, _TRIED).format(limits.blast_radius)}{undone}; "
        f"at most {limits.budget_per_day} times a day, {limits.cooldown_s:g} s apart, each watched for "
        f"{limits.watch_s:g} s; {approval}."
    )


def _canary(policy: ControlPolicy) -> Iterator[str]:
    canary = policy.canary
    shares = ", then ".join(f"{share:.0%}" for share in canary.shares)
    n, share = canary.max_trajectories, canary.shares[0]
    effect = minimum_detectable_effect(_HALF, n, round(n * (1 - share) / share), alpha=2 * canary.alpha)
    yield f"A version is tried on {shares} of trajectories, and ends without a result after {n} of its own."
    yield f"At a success of 50 % it can detect a difference of {effect:.3f} with a power of 80 %."
    yield f"It is promoted if it is better; the chance to promote one that is not is at most {canary.alpha:g}."
    yield (
        f"It is taken back if it is worse, harms more than {canary.harm_limit:.0%} of its trajectories, or lost "
        f"{canary.harm_budget} successes; for a sound one, each test errs with a chance of at most "
        f"{canary.rollback_alpha:g}."
    )
    yield (
        f"It is never promoted while pass^{canary.k} falls, if on each track at least {FEW_TASKS} groups, or users of "
        f"a day, have {canary.k} attempts."
    )
    if canary.shadow != "off":
        remedy = "ends without a result" if canary.shadow == "required" else "serves all the same"
        yield (
            "Before new weights serve anybody, they answer recorded prompts; a version that is worse there than its "
            f"parent is taken back, and one for which that cannot be done {remedy}."
        )


def _joined(names: tuple[str, ...]) -> str:
    return ", ".join(names)
