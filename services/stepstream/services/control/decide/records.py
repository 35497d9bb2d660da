"""Define the inputs and outputs of a decision: `Snapshot`, `History`, `Finding`, `Decision`. Pure.

All times are microseconds since the Unix epoch (UTC). Sequences of outcomes are in order of assignment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from operator import attrgetter
from typing import Any, Literal

import orjson

from stepstream.analytics.estimate import Estimate
from stepstream.analytics.success import Attempts
from stepstream.analytics.tools import Calls

Lever = Literal["tools", "prompt", "skills", "memory", "task_mix", "weights"]
LEVERS: tuple[Lever, ...] = ("tools", "prompt", "skills", "memory", "task_mix", "weights")
Action = Literal["hold", "disable", "canary", "widen", "promote", "rollback", "train", "pause", "resample", "propose"]
TAKES_BACK: tuple[Action, ...] = ("disable", "rollback", "pause")
"""Actions that stop or take back something: neither freeze nor quiet hours prevent them."""
EXPOSES: tuple[Action, ...] = ("canary", "widen", "promote")
"""Actions that put a version before more trajectories."""
CANARY = "canary"
"""Rule of a verdict on a running canary."""
NO_RESULT = "canary_without_result"
"""Rule of the end of a canary that did no harm: it has no result, or a person rejected its promotion. Unlike after a
rollback by `CANARY`, versions that were trained from it may be tried."""
CANARY_RULES = (CANARY, NO_RESULT)
SHADOW_DIFFERENCE, SHADOW_WORSE = "shadow_difference", "e_shadow_worse"
"""Names of the figures of a shadow replay."""
DIVERGING_REWARDS = "diverging_rewards"
"""Rule that pauses learning on a reward that may be gamed; the pause excludes the alarms' reward specifications."""
UNJUDGED = "unjudged"
FailureKind = Literal["", "format", "tool", "capability", "unjudged"]
"""`UNJUDGED`: closed, and nobody waits for its outcome any more. It counts for harm alone."""


WEIGHTS_FROZEN = "another agent that the weights serve is frozen"
"""Reason; tenants read it, so it names no other one."""


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of a figure."""

    view: str
    position: str
    """Offsets or id of the snapshot that it was computed from."""
    since_us: int = 0
    until_us: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Trajectory of the agent, by order of assignment."""

    track: Literal["stable", "canary"]
    success: bool | None
    """None: still open; or never judged, if `failure` is `UNJUDGED`."""
    cluster: str = ""
    """Its group, or its user and day: dependent trajectories count once. Empty: independent."""
    stratum: str = ""
    """Task family."""
    failure: FailureKind = ""
    harmed: bool = False
    """True if it violated a policy or was abandoned."""
    per_canary: int = 1
    """Stable trajectories that one canary trajectory was compared with at its assignment: (1 − share)/share."""
    other_version: str | None = ""
    """After a promotion of weights, its harness version; of a harness, its version of the weights. None: it was not
    served by the promoted version alone, so it says nothing about the promotion."""


@dataclass(frozen=True, slots=True)
class ToolWindow:
    """Calls of a tool by error class: the last window, and 7 days before it."""

    tool: str
    version: str
    error: str
    before: Calls
    window: Calls
    known: bool = True
    """False: nobody has classified this error."""
    previous_version: str = ""
    """Version that a rollback returns to; empty: none, so the tool can only be disabled."""
    offered: bool = True
    """False: agents no longer get this version, so its last window is no reason to act again."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Version that could be tried: a harness version, or a published checkpoint."""

    lever: Lever
    version: str
    parent: str
    headroom: Estimate | None = None
    """Gain on held-out questions, confirmed on the half that did not choose it; None: not measured."""


@dataclass(frozen=True, slots=True)
class RewardAlarm:
    """Active alarm of `watch`: a reward rose while a guard fell."""

    id: str
    message: str
    since_version: int | None = None


@dataclass(frozen=True, slots=True)
class Stratum:
    """Attempts at a task family before and in the window."""

    before: Attempts
    after: Attempts


@dataclass(frozen=True, slots=True)
class Groups:
    """Closed groups of attempts at one task, and those whose attempts all ended alike."""

    n: int
    alike: int
    mean_success: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Statistics of one agent and model at one time."""

    tenant: str
    agent: str
    model: str
    at_us: int
    """Time of the decision: the only clock that `decide` sees."""
    complete_until_us: int
    """Time up to which every source was read; older than the policy allows: hold."""
    source: Source
    """Origin of the outcomes, and of each figure that `sources` does not name."""
    outcomes: tuple[Outcome, ...] = ()
    """Since the newest promotion or the beginning of the window."""
    baseline: Attempts | None = None
    """Success before the outcomes, with the version that preceded; None: unknown."""
    format_failures: Attempts | None = None
    """Trajectories of the window, and those among them that failed by format."""
    tools: tuple[ToolWindow, ...] = ()
    groups: Groups | None = None
    strata: Mapping[str, Stratum] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, Attempts]] | None = None
    """Success before the promotion by `other_version` and task family; None: that of `strata`, or `baseline`."""
    candidates: tuple[Candidate, ...] = ()
    alarms: tuple[RewardAlarm, ...] = ()
    others_alarmed: bool = False
    """True if an alarm is active about another agent of the tenant with the model, whose learning is the same."""
    coverage: Estimate | None = None
    """Share of the served task families that the training fleet samples."""
    staleness_p95: float | None = None
    """Versions between the learner and the oldest version among trained tokens."""
    learning: bool = False
    """True while the learner trains."""
    revised: bool = False
    """True if a statistic that an earlier decision used has been revised since."""
    missing: tuple[str, ...] = ()
    """Names of views that gave no answer."""
    open_tests: int = 1
    """Canaries that run for all agents: α is divided by it."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Origin of figures with another view or window than the outcomes, by name."""


@dataclass(frozen=True, slots=True)
class Past:
    """Earlier decision."""

    id: str
    at_us: int
    lever: Lever | None
    action: Action
    target: str = ""
    watched_until_us: int = 0
    state: Literal["done", "awaiting", "rejected", "failed"] = "done"

    @property
    def tries(self) -> bool:
        """True if it tries its target, or has tried it: not once the act failed."""
        return self.action in {"canary", "promote"} and self.state != "failed"


@dataclass(frozen=True, slots=True)
class Shadow:
    """Result of a shadow replay: a version and its parent answered recorded prompts before it served anybody."""

    difference: Estimate
    """Mean over tasks of the version's score minus its parent's; undefined, with the reason: it could not be done."""
    worse: float = 1.0
    """E-value against "the version is no worse", over tasks."""


@dataclass(frozen=True, slots=True)
class Canary:
    """Version under test."""

    lever: Lever
    version: str
    parent: str
    started_us: int
    """Begin of its first share above 0; while it serves nobody, that of its shadow replay."""
    share: float
    """0: a shadow replay comes first, and no trajectory is on it."""
    approved: Attempts | None = None
    """Success of the last version that a person approved; None: unknown."""
    shadow: Shadow | None = None
    """Result of its shadow replay; None: there is none, or not yet."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """Newest promotion: the outcomes of the snapshot's stable track follow it."""

    lever: Lever
    version: str
    parent: str
    at_us: int
    decision_id: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """Earlier decisions of this agent, as the log has them."""

    decisions: tuple[Past, ...] = ()
    canary: Canary | None = None
    promotion: Promotion | None = None
    frozen: bool = False
    """True after `stepstream decisions freeze`."""
    weights_frozen: bool = False
    """True after the freeze of another agent that the model's weights serve, perhaps of another tenant."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Figure that a decision rests on."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    reason: str = ""
    view: str = ""
    since_us: int = 0
    until_us: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """Action that a rule proposes."""

    rule: str
    lever: Lever
    action: Action
    target: str
    reason: str
    evidence: tuple[Evidence, ...] = ()
    parent: str = ""
    """Version that undoes it."""
    safety: bool = False
    """True if it takes back or stops something: freeze, quiet hours, cool-down and budget do not delay it."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Proposal that lost, or a rule that did not decide."""

    rule: str
    lever: str
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision, also `hold`. `id` is derived from the inputs, so a replay gives the same bytes."""

    id: str
    tenant: str
    agent: str
    model: str
    at_us: int
    action: Action
    lever: Lever | None
    target: str
    rule: str
    reason: str
    evidence: tuple[Evidence, ...]
    lost: tuple[Alternative, ...]
    view: str
    position: str
    policy_hash: str
    share: float = 0.0
    """Share of trajectories of a canary."""
    cost: float = 0.0
    blast_radius: float = 0.0
    approvals: int = 0
    """People who must approve before it is done; 0: none."""
    roles: tuple[str, ...] = ()
    watched_until_us: int = 0
    undo: str = ""
    """Act that undoes it, in words; empty: nothing was done."""
    detectable_effect: float | None = None
    """Smallest difference of success that a starting canary can detect."""

    def to_bytes(self) -> bytes:
        """Return canonical JSON."""
        return orjson.dumps(self, option=orjson.OPT_SORT_KEYS)


def past_of(decision: Decision) -> Past:
    """Return a decision that was done, as a later history has it."""
    return Past(
        decision.id, decision.at_us, decision.lever, decision.action, decision.target, decision.watched_until_us
    )


_OUTCOME = attrgetter(*Outcome.__dataclass_fields__)


def inputs_digest(snapshot: Snapshot, history: History) -> str:
    """Return the digest of all inputs. Outcomes are written as arrays, which takes a fifth of the time."""
    rows = [_OUTCOME(outcome) for outcome in snapshot.outcomes]
    return digest(replace(snapshot, outcomes=()), rows, history)


def digest(*records: Any) -> str:
    """Return the SHA-256 (hex) of records as canonical JSON: equal inputs have equal digests."""
    # `default`: named tuples are written as arrays.
    return sha256(orjson.dumps(records, default=tuple, option=orjson.OPT_SORT_KEYS)).hexdigest()


def evidence(name: str, estimate: Estimate) -> Evidence:
    """Return an estimate as evidence, rounded to 9 digits: the last bits of sums may differ between machines."""
    value, low, high = (None if x is None else rounded(x) for x in (estimate.value, estimate.low, estimate.high))
    return Evidence(name, value, low, high, estimate.n, estimate.reason)


def rounded(x: float) -> float:
    """Return a number with 9 significant digits."""
    return float(f"{x:.9g}")
