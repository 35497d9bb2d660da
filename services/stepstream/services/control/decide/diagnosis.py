"""Diagnose an agent from its trajectories: one small rule a function, each with its source. Pure.

A rule returns what it would do, or None. Rules that take something back are `safety`; the others start something.
"""

from collections.abc import Callable, Iterator

from stepstream.analytics.change_point import find_change
from stepstream.analytics.estimate import Estimate
from stepstream.analytics.success import share, wilson
from stepstream.analytics.tools import FACTOR, tool_alert
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import Evidence, Finding, History, Snapshot, evidence, rounded

Rule = Callable[[Snapshot, History, ControlPolicy], Finding | None]

_SOLVED = 0.95
"""Mean success above which weights have little to learn."""


def tool_errors(snapshot: Snapshot, _history: History, _policy: ControlPolicy) -> Finding | None:
    """Find the tool whose errors exceed twice its baseline (Wilson bound at 99 %; METRICS E, measured).

    A tool version with a predecessor is rolled back, any other tool is disabled.
    """
    found = []
    for tool in snapshot.tools:
        alert = tool_alert(tool.before, tool.window, known=tool.known)
        if alert.raised and alert.low is not None:
            found.append((alert.low / alert.baseline, tool, alert))
    if not found:
        return None
    _, tool, alert = max(found, key=lambda each: (each[0], each[1].tool, each[1].error))
    observed = share(tool.window.errors, tool.window.n)
    return Finding(
        "tool_errors",
        "tools",
        "rollback" if tool.previous_version else "disable",
        f"{tool.tool}@{tool.previous_version}" if tool.previous_version else tool.tool,
        f"errors {tool.error!r} of {tool.tool} exceed {FACTOR} times their baseline",
        (evidence("error_share", observed), Evidence("baseline", rounded(alert.baseline), n=tool.before.n)),
        parent=f"{tool.tool}@{tool.version}",
        safety=True,
    )


def change_after_promotion(snapshot: Snapshot, history: History, policy: ControlPolicy) -> Finding | None:
    """Find a fall of success after a promotion by a CUSUM (Page 1954; METRICS F), unless the task mix explains it."""
    promotion, before = history.promotion, snapshot.baseline
    if promotion is None or before is None or before.n < policy.min_trajectories:
        return None
    rate = min(0.99, before.successes / before.n)
    after = rate - policy.change_effect
    if after <= 0.01:
        return None
    closed = [one.success for one in snapshot.outcomes if one.track == "stable" and one.success is not None]
    change = find_change(closed, rate, after, policy.change_limit)
    if change is None or (mix := mix_explains(snapshot, policy)) is True:
        return None
    figures = [
        evidence("success_before", share(before.successes, before.n)),
        evidence("success_after", share(sum(closed[change.place - 1 :]), len(closed) - change.place + 1)),
        Evidence("cusum", rounded(change.height), n=change.alarm),
        Evidence("change_at", float(change.place), n=change.alarm),
    ]
    if mix is not None:
        figures.append(Evidence("falls_within_strata", 1.0))
    return Finding(
        "change_after_promotion",
        promotion.lever,
        "rollback",
        promotion.parent,
        f"success fell at trajectory {change.place} after the promotion of {promotion.version}",
        tuple(figures),
        parent=promotion.version,
        safety=True,
    )


def diverging_rewards(snapshot: Snapshot, _history: History, _policy: ControlPolicy) -> Finding | None:
    """Stop learning on a reward that rises while a guard falls (alarms of `watch`; docs/rewards.md)."""
    if not snapshot.alarms or not snapshot.learning:
        return None
    alarm = min(snapshot.alarms, key=lambda one: one.id)
    return Finding(
        "diverging_rewards",
        "weights",
        "pause",
        snapshot.model,
        f"the reward may be gamed: {alarm.message}",
        (Evidence("active_alarms", float(len(snapshot.alarms))),),
        safety=True,
    )


def staleness(snapshot: Snapshot, _history: History, policy: ControlPolicy) -> Finding | None:
    """Pause a learner whose data are too old for its corrections (AReaL, arXiv:2505.24298, section 5.1)."""
    lag = snapshot.staleness_p95
    if not snapshot.learning or lag is None or lag <= policy.staleness_limit:
        return None
    reason = f"p95 of staleness is {lag:g} versions, above {policy.staleness_limit:g}"
    figures = (Evidence("staleness_p95", rounded(lag)),)
    return Finding("staleness", "weights", "pause", snapshot.model, reason, figures, safety=True)


def headroom(snapshot: Snapshot, _history: History, _policy: ControlPolicy) -> Finding | None:
    """Try the candidate with the largest confirmed gain on held-out questions (arXiv:2604.14585; METRICS G)."""
    confirmed = [
        (gain.value, candidate)
        for candidate in snapshot.candidates
        if (gain := candidate.headroom) is not None and gain.value is not None and gain.low is not None
        if gain.low > 0 and gain.value >= 0.02
    ]
    if not confirmed:
        return None
    _, best = max(confirmed, key=lambda each: (each[0], each[1].version))
    assert best.headroom is not None
    reason = f"{best.version} gains on held-out questions that did not choose it"
    figures = (evidence("headroom", best.headroom),)
    return Finding("headroom", best.lever, "canary", best.version, reason, figures, best.parent)


def format_failures(snapshot: Snapshot, _history: History, policy: ControlPolicy) -> Finding | None:
    """Propose a prompt where trajectories fail by format: "can but does not" is no lack of capability.

    Fires if Wilson's lower bound of their share exceeds `format_limit`, and no prompt waits for a test.
    """
    failed = snapshot.format_failures
    if failed is None or not failed.n or any(one.lever == "prompt" for one in snapshot.candidates):
        return None
    if wilson(failed.successes, failed.n)[0] <= policy.format_limit:
        return None
    figures = (evidence("format_failure_share", share(failed.successes, failed.n)),)
    reason = f"format failures exceed {policy.format_limit:g} of trajectories"
    return Finding("format_failures", "prompt", "propose", snapshot.agent, reason, figures)


def new_version(snapshot: Snapshot, history: History, _policy: ControlPolicy) -> Finding | None:
    """Try the newest published checkpoint, or an unmeasured harness version, that was not tried before."""
    tried = {past.target for past in history.decisions if past.action in {"canary", "promote"}}
    fresh = [one for one in snapshot.candidates if one.headroom is None and one.version not in tried]
    if not fresh:
        return None
    newest = fresh[-1]
    reason = f"{newest.version} is published and untried"
    return Finding("new_version", newest.lever, "canary", newest.version, reason, parent=newest.parent)


def gradient(snapshot: Snapshot, _history: History, policy: ControlPolicy) -> Finding | None:
    """Resume learning where groups of attempts differ in outcome, so that they yield a gradient (DAPO, 2503.14476)."""
    groups = snapshot.groups
    if snapshot.learning or snapshot.alarms or groups is None or not groups.n or groups.mean_success >= _SOLVED:
        return None
    varied = groups.n - groups.alike
    if wilson(varied, groups.n)[0] <= policy.variance_limit:
        return None
    figures = (evidence("groups_with_variance", share(varied, groups.n)),)
    reason = f"more than {policy.variance_limit:g} of the groups yield a gradient"
    return Finding("gradient", "weights", "train", snapshot.model, reason, figures)


def coverage(snapshot: Snapshot, _history: History, policy: ControlPolicy) -> Finding | None:
    """Sample task families that are served and not trained on, or groups without variance while learning."""
    covered, groups = snapshot.coverage, snapshot.groups
    if covered is not None and covered.high is not None and covered.high < policy.coverage_limit:
        reason = f"training samples fewer than {policy.coverage_limit:g} of the served task families"
        return Finding("coverage", "task_mix", "resample", snapshot.agent, reason, (evidence("coverage", covered),))
    if groups is None or not groups.n or not snapshot.learning:
        return None
    varied = groups.n - groups.alike
    if wilson(varied, groups.n)[1] >= policy.variance_limit:
        return None
    figures = (evidence("groups_with_variance", share(varied, groups.n)),)
    reason = f"fewer than {policy.variance_limit:g} of the groups yield a gradient: sample the edge of ability"
    return Finding("coverage", "task_mix", "resample", snapshot.agent, reason, figures)


def mix_explains(snapshot: Snapshot, policy: ControlPolicy) -> bool | None:
    """Return True if success did not fall at a fixed task mix (direct standardisation): no regression.

    The fall within strata is weighted by the window's mix; True unless its 95 % lower end exceeds 0, or its middle
    `change_effect`. None: no stratum has attempts on both sides.
    """
    both = [one for one in snapshot.strata.values() if one.before.n and one.after.n]
    total = sum(one.after.n for one in both)
    if not total:
        return None
    fall = variance = 0.0
    for one in both:
        weight = one.after.n / total
        p, q = one.before.successes / one.before.n, one.after.successes / one.after.n
        fall += weight * (p - q)
        # (x + ½)/(n + 1): a stratum without failures still has a variance.
        ps = [(side.successes + 0.5) / (side.n + 1) for side in (one.before, one.after)]
        variance += weight**2 * sum(r * (1 - r) / s.n for r, s in zip(ps, (one.before, one.after), strict=True))
    return fall - 1.96 * variance**0.5 <= 0 and fall < policy.change_effect


RULES: dict[str, Rule] = {
    "change_after_promotion": change_after_promotion,
    "diverging_rewards": diverging_rewards,
    "staleness": staleness,
    "tool_errors": tool_errors,
    "headroom": headroom,
    "format_failures": format_failures,
    "new_version": new_version,
    "gradient": gradient,
    "coverage": coverage,
}


def diagnose(snapshot: Snapshot, history: History, policy: ControlPolicy) -> Iterator[Finding]:
    """Yield the findings of all enabled rules, in the order of `RULES`."""
    for name, rule in RULES.items():
        if getattr(policy.rules, name):
            finding = rule(snapshot, history, policy)
            if finding is not None:
                yield finding


def mean_success(snapshot: Snapshot) -> Estimate:
    """Return success of the stable track in the window."""
    closed = [one.success for one in snapshot.outcomes if one.track == "stable" and one.success is not None]
    return share(sum(closed), len(closed))
