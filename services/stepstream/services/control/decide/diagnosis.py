"""Diagnose an agent from its trajectories: one small rule a function, each with its source. Pure.

A rule returns what it would do, or None. Rules that take something back are `safety`; the others start something.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from stepstream.analytics.change_point import find_fall
from stepstream.analytics.estimate import Estimate
from stepstream.analytics.success import Attempts, share, wilson
from stepstream.analytics.tools import FACTOR, tool_alert
from stepstream.jobs.rewards.builtin_components import MALFORMED
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import (
    DIVERGING_REWARDS,
    UNJUDGED,
    Evidence,
    Finding,
    History,
    Outcome,
    Snapshot,
    evidence,
    rounded,
)

Rule = Callable[[Snapshot, History, ControlPolicy], Finding | None]

_Z_99_95 = 3.2905267314919255
_SOLVED = 0.95
"""Mean success above which weights have little to learn."""


def tool_errors(snapshot: Snapshot, _history: History, _policy: ControlPolicy) -> Finding | None:
    """Find the tool whose errors exceed twice its baseline (METRICS E), surely enough to act at one of many looks.

    A tool version with a predecessor is rolled back, any other tool is disabled. Beyond the alert, Wilson's lower bound
    at 99.95 % must exceed twice the baseline's upper bound. With the alert's bounds alone, 10 % of sound fleets lost a
    tool in 15 days; with the alert's lower bound, 2 % (bench/decide.py). A malformed call is the model's fault, perhaps
    of one version on trial, and none of the tool's.
    """
    found = []
    for tool in snapshot.tools:
        alert = tool_alert(tool.before, tool.window, known=tool.known)
        surely_before = wilson(tool.before.errors, tool.before.n)[1] if tool.before.n else 1.0
        if not alert.raised or not tool.window.n or not tool.offered or tool.error in MALFORMED:
            continue
        low = wilson(tool.window.errors, tool.window.n, _Z_99_95)[0]
        if low > FACTOR * surely_before:
            found.append((low / alert.baseline, tool, alert))
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
    """Find a fall of success after a promotion by a CUSUM at the rate of each stratum, as estimated before it.

    A drift of the task mix is no fall then, nor is an error of the estimates (`find_fall` has formula and sources).
    A stratum is a task family with one version of the other lever: what a disabled tool or other weights change is no
    fall by the promotion, and with a version that did not serve before it, nothing is compared.
    Trajectories that failed by the error of a tool are left to `tool_errors`: no version answers for its outage.
    One that is still open counts as a success: failures often close first, and the newest closed ones would then look
    like a fall. The ratio of a stretch grows with each failure in it, so the bound on false alarms holds however the
    open ones end.
    A cluster counts once, at its first trajectory: attempts of one group fail together, without any fall.
    Strata with too few clusters before the promotion are left out. At the default limit 12 of 1,000 fleets whose
    task mix changed lost a sound version within 15 days of its promotion (docs/measured/decide.md).
    """
    promotion, baselines = history.promotion, _baselines(snapshot, policy)
    if promotion is None:
        return None
    counted = [
        one
        for one in snapshot.outcomes
        if one.track == "stable" and one.failure not in ("tool", UNJUDGED) and _stratum(one) in baselines
    ]
    clusters = _clusters(counted)
    observed = ([(_stratum(one), one.success is not False) for one in members] for _, members in clusters)
    change = find_fall(observed, baselines, policy.change_effect, policy.change_limit)
    if change is None:
        return None
    place, _ = clusters[change.place - 1]
    after = [one for one in counted[place - 1 :] if one.success is not None]
    expected = sum(_rate(baselines[_stratum(one)]) for one in after) / len(after)
    figures = (
        Evidence("expected_success", rounded(expected), n=len(after)),
        evidence("success_after", share(sum(bool(one.success) for one in after), len(after))),
        Evidence("cusum", rounded(change.height), n=change.alarm),
        Evidence("change_at", float(place), n=change.alarm),
    )
    reason = f"success fell at trajectory {place} after the promotion of {promotion.version}, at equal strata"
    target = promotion.parent
    return Finding(
        "change_after_promotion", promotion.lever, "rollback", target, reason, figures, promotion.version, safety=True
    )


def _clusters(outcomes: Sequence[Outcome]) -> list[tuple[int, list[Outcome]]]:
    """Return the clusters with the place of their first trajectory, from 1, in order of these."""
    found: list[tuple[int, list[Outcome]]] = []
    by_name: dict[str, list[Outcome]] = {}
    for place, one in enumerate(outcomes, 1):
        if one.cluster in by_name:
            by_name[one.cluster].append(one)
            continue
        members = [one]
        found.append((place, members))
        if one.cluster:
            by_name[one.cluster] = members
    return found


def _baselines(snapshot: Snapshot, policy: ControlPolicy) -> dict[str, Attempts]:
    """Return each stratum's attempts before the promotion, where they are enough and success can fall visibly."""
    before: Mapping[str, Mapping[str, Attempts]]
    if snapshot.baselines is not None:
        before = snapshot.baselines
    elif snapshot.strata:
        before = {"": {family: stratum.before for family, stratum in snapshot.strata.items()}}
    else:
        before = {"": {"": snapshot.baseline}} if snapshot.baseline is not None else {}
    strata = {_name(version, family): one for version, families in before.items() for family, one in families.items()}
    return {name: one for name, one in strata.items() if one.n >= policy.min_trajectories and _rate(one) > 0.02}


def _stratum(outcome: Outcome) -> str:
    """Return the stratum of an outcome; empty, so in no baseline: it is not comparable."""
    return "" if outcome.other_version is None else _name(outcome.other_version, outcome.stratum)


def _name(version: str, family: str) -> str:
    return f"{version}\n{family}"


def _rate(before: Attempts) -> float:
    """Return (c + ½)/(n + 1)."""
    return (before.successes + 0.5) / (before.n + 1)


def diverging_rewards(snapshot: Snapshot, _history: History, _policy: ControlPolicy) -> Finding | None:
    """Stop learning on a reward that rises while a guard falls (alarms of `watch`; docs/rewards.md)."""
    if not snapshot.alarms or not snapshot.learning:
        return None
    alarm = min(snapshot.alarms, key=lambda one: one.id)
    return Finding(
        DIVERGING_REWARDS,
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
    tried = {past.target for past in history.decisions if past.tries}
    fresh = [one for one in snapshot.candidates if one.headroom is None and one.version not in tried]
    if not fresh:
        return None
    newest = fresh[-1]
    reason = f"{newest.version} is published and untried"
    return Finding("new_version", newest.lever, "canary", newest.version, reason, parent=newest.parent)


def gradient(snapshot: Snapshot, _history: History, policy: ControlPolicy) -> Finding | None:
    """Resume learning where groups of attempts differ in outcome, so that they yield a gradient (DAPO, 2503.14476).

    A pause is for all agents of the tenant with the model, so the alarm of another agent keeps it.
    """
    groups = snapshot.groups
    if snapshot.learning or snapshot.alarms or snapshot.others_alarmed:
        return None
    if groups is None or not groups.n or groups.mean_success >= _SOLVED:
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


RULES: dict[str, Rule] = {
    "change_after_promotion": change_after_promotion,
    DIVERGING_REWARDS: diverging_rewards,
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
