"""Build the `Snapshot` of a scope from rows of the store and the newest records of compacted topics. Pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import TypeVar

from stepstream.analytics.estimate import Estimate
from stepstream.analytics.success import Attempts, share
from stepstream.services.control.decide.records import (
    SHADOW_DIFFERENCE,
    SHADOW_WORSE,
    Canary,
    Candidate,
    History,
    Outcome,
    Promotion,
    RewardAlarm,
    Snapshot,
    Source,
    Stratum,
    ToolWindow,
)
from stepstream.services.control.scope import Scope, Serving
from stepstream.services.control.statistics import BeforeRow, OutcomeRow, Statistics, ToolRow
from stepstream.topics.events import Harness
from stepstream.versions.harnesses import served_harnesses
from stepstream.versions.rollouts import is_taken_back

VIEW = "trajectories"
_Name = TypeVar("_Name")
_UNKNOWN = frozenset({"", "unknown", "other", "error"})
"""Error classes that nobody has classified, as in the view `tool_errors`."""
MIN_FAMILIES = 5
"""Served task families below which coverage is not defined."""


def snapshot_of(
    scope: Scope,
    at_us: int,
    since_us: int,
    found: Statistics,
    serving: Serving,
    history: History,
    *,
    shares: Sequence[tuple[int, float]] = (),
    owns_weights: bool = True,
    open_tests: int = 1,
    revised: bool = False,
) -> Snapshot:
    """Return the snapshot.

    Args:
        scope: what it is about.
        at_us: time of the decision.
        since_us: begin of the outcomes.
        found: rows of the store.
        serving: newest records of the compacted topics.
        history: earlier decisions.
        shares: (time, share) of the running canary, the oldest first.
        owns_weights: False: another scope tries and judges the weights of this model.
        open_tests: canaries that run for all scopes.
        revised: True if outcomes that the decision before counted were revised.
    """
    retired = {version for version, one in serving.harnesses.items() if one["state"] == "retired"}
    other_version = partial(_other_version, history.promotion, serving)
    outcomes = tuple(_outcomes(found.outcomes, history.canary, shares, retired, other_version))
    stable = [one for one in outcomes if one.track == "stable" and one.success is not None]
    before = found.before if history.promotion is not None else ()
    totals = _totals((row.family, row.attempts) for row in before)
    return Snapshot(
        tenant=scope.tenant,
        agent=scope.agent,
        model=scope.model,
        at_us=at_us,
        complete_until_us=min(at_us, found.position.complete_until_us),
        source=Source(VIEW, found.position.text, since_us, at_us),
        outcomes=outcomes,
        baseline=_totals((None, attempts) for attempts in totals.values()).get(None),
        format_failures=Attempts(len(stable), sum(one.failure == "format" for one in stable)),
        tools=tuple(_tool(row, serving) for row in found.tools),
        groups=found.groups,
        strata=_strata(totals, stable),
        baselines=None if history.promotion is None else _baselines(before, other_version),
        candidates=tuple(_candidates(serving, history, owns_weights)),
        alarms=tuple(RewardAlarm(one["alarm_id"], one["message"], one["since_version"]) for one in serving.alarms),
        others_alarmed=bool(serving.other_alarms),
        coverage=_coverage(found),
        staleness_p95=found.staleness_p95,
        learning=serving.training is None or not serving.training["paused"],
        revised=revised,
        missing=found.missing,
        open_tests=max(1, open_tests),
        sources=_sources(found, at_us),
    )


def outcomes_since(history: History, at_us: int, window_s: float) -> int:
    """Return the time from which outcomes count, in microseconds.

    The start of a running canary, else the newest promotion, or a later act on a tool: trajectories with a broken tool
    do not judge a version. At most `window_s` seconds ago.
    """
    begin = at_us - round(window_s * 1e6)
    if history.canary is not None:
        return max(begin, history.canary.started_us)
    if history.promotion is None:
        return begin
    acts = [one.at_us for one in history.decisions if one.lever == "tools" and one.state == "done"]
    return max(begin, history.promotion.at_us, *acts)


def _sources(found: Statistics, at_us: int) -> dict[str, Source]:
    """Return the origin of each figure that has another view or window than the outcomes."""
    position = found.position.text
    window = Source(VIEW, position, found.window_us, at_us)
    return {
        "groups_with_variance": window,
        "coverage": window,
        "error_share": Source(VIEW, position, found.tools_us, at_us),
        "baseline": Source("tool_hours", position, found.tools_before_us, found.tools_us),
        "staleness_p95": Source("training_decisions", "", found.window_us, at_us),
        "active_alarms": Source("alarms", "", 0, at_us),
        "headroom": Source("harnesses", "", 0, at_us),
        SHADOW_DIFFERENCE: Source("decision-acts", "", 0, at_us),
        SHADOW_WORSE: Source("decision-acts", "", 0, at_us),
    }


def _outcomes(
    rows: Iterable[OutcomeRow],
    canary: Canary | None,
    shares: Sequence[tuple[int, float]],
    retired: Set[str],
    other_version: Callable[[OutcomeRow], str | None],
) -> Iterator[Outcome]:
    """Yield the outcomes of the versions that are compared; without a canary, those of the stable versions.

    `retired`: harness versions that were taken back.
    """
    times = [at_us for at_us, _ in shares]
    for row in rows:
        if canary is None and (row.track == "canary" or row.harness_version in retired):
            continue  # of a canary that has ended: its failures are not those of the stable version
        is_canary = canary is not None and _is_canary(row, canary)
        if canary is not None and canary.lever != "weights" and not is_canary and row.harness_version != canary.parent:
            continue  # of a version that is not compared
        at = max(0, bisect_right(times, row.opened_us) - 1)
        part = shares[at][1] if shares else 0.5
        yield Outcome(
            "canary" if is_canary else "stable",
            row.success,
            row.cluster,
            row.family,
            row.failure,
            row.harmed,
            max(1, round((1 - part) / part)) if 0 < part < 1 else 1,
            other_version(row),
        )


def _is_canary(row: OutcomeRow, canary: Canary) -> bool:
    return row.track == "canary" if canary.lever == "weights" else row.harness_version == canary.version


def _other_version(
    promotion: Promotion | None, serving: Serving, row: OutcomeRow | BeforeRow, *, is_before: bool = False
) -> str | None:
    """Return `Outcome.other_version` of a trajectory after the promotion, or before it.

    A harness is compared with its parent alone: a change of a tool makes another version, whose success says nothing
    about the promotion. Without a parent, the agent's own calls are compared: they may name a version of their own.
    Weights that follow the newest version change all the time, so each of them counts.
    """
    if promotion is None:
        return ""
    if promotion.lever == "weights":
        return row.harness_version
    if is_before and not promotion.parent:
        is_compared = row.harness_version not in serving.harnesses
    else:
        is_compared = row.harness_version == (promotion.parent if is_before else promotion.version)
    if not is_compared:
        return None
    return "" if serving.versions.served.follows_newest else row.weights_version


def _baselines(before: Iterable[BeforeRow], other_version: Callable[..., str | None]) -> dict[str, dict[str, Attempts]]:
    """Return the success before a promotion by version of the other lever and task family."""
    named = ((other_version(row, is_before=True), row) for row in before)
    totals = _totals(((version, row.family), row.attempts) for version, row in named if version is not None)
    found: dict[str, dict[str, Attempts]] = {}
    for (version, family), attempts in totals.items():
        found.setdefault(version, {})[family] = attempts
    return found


def _totals(attempts: Iterable[tuple[_Name, Attempts]]) -> dict[_Name, Attempts]:
    """Return the sum of the attempts of each name."""
    found: dict[_Name, Attempts] = {}
    for name, one in attempts:
        earlier = found.get(name, Attempts(0, 0))
        found[name] = Attempts(earlier.n + one.n, earlier.successes + one.successes)
    return found


def _strata(before: Mapping[str, Attempts], stable: Sequence[Outcome]) -> dict[str, Stratum]:
    if not before:
        return {}
    n = Counter(one.stratum for one in stable)
    successes = Counter(one.stratum for one in stable if one.success)
    none = Attempts(0, 0)
    return {name: Stratum(before.get(name, none), Attempts(n[name], successes[name])) for name in sorted({*before, *n})}


def _tool(row: ToolRow, serving: Serving) -> ToolWindow:
    version, previous = _tool_versions(row.tool, serving)
    known = row.error.lower() not in _UNKNOWN
    stable = served_harnesses(serving.harnesses.values()).stable
    # An agent that ignores its harness may go on calling a disabled tool.
    offered = stable is None or all(one["enabled"] for one in stable["tools"] if one["name"] == row.tool)
    return ToolWindow(row.tool, version, row.error, row.before, row.window, known, previous, offered)


def _tool_versions(tool: str, serving: Serving) -> tuple[str, str]:
    """Return the pinned version of a tool, and the one that an earlier stable harness pinned; empty: none."""
    pinned = []
    left: dict[str, Harness] = dict(serving.harnesses)
    while (stable := served_harnesses(left.values()).stable) is not None:
        pinned += [one["version"] for one in stable["tools"] if one["name"] == tool and one["version"]]
        del left[stable["version"]]
    version = pinned[0] if pinned else ""
    return version, next((one for one in pinned if one != version), "")


def _candidates(serving: Serving, history: History, owns_weights: bool) -> Iterator[Candidate]:
    """Yield harness versions that were proposed, then untried weights; the newest of each last."""
    served = served_harnesses(serving.harnesses.values())
    parent = "" if served.stable is None else served.stable["version"]
    if served.stable is None or not served.stable["pinned"]:
        for one in sorted(serving.harnesses.values(), key=lambda one: (one["revision"], one["version"])):
            if one["state"] == "proposed":
                yield Candidate("prompt", one["version"], parent, _headroom(one))
    if owns_weights:
        yield from _weights(serving, history)


def _weights(serving: Serving, history: History) -> Iterator[Candidate]:
    """Yield versions newer than all that were tried, unless they were trained from one that was taken back for harm.

    A canary that ended without a result takes nothing back: its descendants learned more, and may be better.
    """
    served, checkpoints = serving.versions.served, serving.versions.checkpoints
    if served.stable is None or served.follows_newest:
        return
    tried = [
        int(past.target)
        for past in history.decisions
        if past.lever == "weights" and past.tries and past.target.isdigit()
    ]
    newest = max([served.stable, *served.taken_back, *tried])
    for version in sorted(checkpoints):
        if version <= newest or version == served.canary or checkpoints[version]["removed_at_us"] is not None:
            continue
        if not is_taken_back(version, checkpoints, served.taken_back):
            yield Candidate("weights", str(version), str(served.stable))


def _headroom(harness: Harness) -> Estimate | None:
    """Return the gain that an optimiser measured on held-out questions; None: it was not measured."""
    found = harness["headroom"]
    if found is None:
        return None
    return Estimate(found["value"], found["low"], found["high"], found["n"], reason=found["reason"])


def _coverage(found: Statistics) -> Estimate | None:
    """Return the share of served task families that the training fleet samples; None: too few, or no training."""
    if len(found.served_families) < MIN_FAMILIES or not found.trained_families:
        return None
    return share(len(found.served_families & found.trained_families), len(found.served_families))
