"""Check the limits of a policy: scope, freeze, quiet hours, cool-down, budgets, watched decisions. Pure."""

from collections.abc import Iterator

from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import CANARY_RULES, EXPOSES, WEIGHTS_FROZEN, Finding, History, Snapshot

_DAY_US = 86_400_000_000


def bad_input(snapshot: Snapshot, policy: ControlPolicy) -> str:
    """Return why nothing may be decided on these statistics; empty: they are complete and recent."""
    if not policy.covers(snapshot.tenant, snapshot.agent, snapshot.model):
        return "the policy does not cover this agent and model"
    if snapshot.missing:
        return f"missing statistics: {', '.join(sorted(snapshot.missing))}"
    if snapshot.revised:
        return "statistics of an earlier decision were revised: wait for the next snapshot"
    if not snapshot.complete_until_us:
        return "there are no statistics yet"
    age = (snapshot.at_us - snapshot.complete_until_us) / 1e6
    if age > policy.max_age_s:
        return f"statistics are {age:.0f} s old, more than {policy.max_age_s:.0f} s"
    if age < 0:
        return "statistics are from after the time of the decision"
    return ""


def blocked(finding: Finding, snapshot: Snapshot, history: History, policy: ControlPolicy) -> str:
    """Return why a finding may not be acted on now; empty: it may."""
    return next(_reasons(finding, snapshot, history, policy), "")


def _reasons(finding: Finding, snapshot: Snapshot, history: History, policy: ControlPolicy) -> Iterator[str]:
    limits, now = policy.levers[finding.lever], snapshot.at_us
    pulls = [past for past in history.decisions if past.action != "hold" and past.state != "rejected"]
    same = [past for past in pulls if past.lever == finding.lever]
    # A proposal reaches no trajectory: it delays other proposals, and not the canary that tries it.
    watched = [past for past in pulls if past.action != "propose" and past.watched_until_us > now]
    earlier = [past for past in same if (past.action == "propose") == (finding.action == "propose")]
    if not limits.enabled and not _ends_own_canary(finding, history):
        yield f"the lever {finding.lever} is disabled"
    # A running canary is proof that its own last verdict was not done, or was another one.
    alike = [past for past in same if (past.action, past.target) == (finding.action, finding.target)]
    if any(
        past.state == "awaiting" or (finding.rule not in CANARY_RULES and past.watched_until_us > now) for past in alike
    ):
        yield "the same decision is in force"
    # A pause protects no agent: who resumes learning despite an alarm knows better than the alarm.
    is_urgent = finding.safety and finding.action != "pause"
    if not is_urgent and _is_rejected(finding, history, now):
        yield "a person rejected it less than a day ago"
    if finding.safety:
        return
    if history.frozen or policy.freeze:
        yield "frozen"
    if history.weights_frozen and finding.lever == "weights" and finding.action in EXPOSES:
        yield WEIGHTS_FROZEN
    if policy.is_quiet(now):
        yield "quiet hours"
    if finding.action in {"promote", "widen"}:  # part of a canary that was started within the limits
        return
    closed = sum(one.success is not None for one in snapshot.outcomes)
    if closed < policy.min_trajectories:
        yield f"{closed} closed trajectories, fewer than {policy.min_trajectories}"
    if history.canary is not None:
        yield f"the canary of {history.canary.version} is running"
    if watched:
        yield f"decision {watched[-1].id} is being watched"
    if any(now - past.at_us < limits.cooldown_s * 1e6 for past in earlier):
        yield f"cool-down of {finding.lever}"
    if sum(now - past.at_us < _DAY_US for past in earlier) >= limits.budget_per_day:
        yield f"budget of {finding.lever}: {limits.budget_per_day} a day"
    if sum(now - past.at_us < _DAY_US for past in pulls) >= policy.decisions_per_day:
        yield f"rate limit: {policy.decisions_per_day} decisions a day"


def _ends_own_canary(finding: Finding, history: History) -> bool:
    """Return True if a finding takes back a running canary that a decision began: its lever may be disabled since."""
    canary = history.canary
    if canary is None or finding.action != "rollback" or finding.rule not in CANARY_RULES:
        return False
    began = {(past.lever, past.action, past.target) for past in history.decisions}
    return (canary.lever, "canary", canary.version) in began


def _is_rejected(finding: Finding, history: History, now: int) -> bool:
    return any(
        (past.state, past.action, past.target) == ("rejected", finding.action, finding.target)
        and now - past.at_us < _DAY_US
        for past in history.decisions
    )
