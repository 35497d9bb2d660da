"""Give a controller in process over committed records, whose fleet's statistics follow from what serves it.

A step is a point of a transaction (a record is sent, the commit begins, the commit is over) or of a search. A kill
loses all that is not committed; the next controller knows the committed records only.
"""

import itertools
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, cast

import pytest
from sample_records import checkpoint

from stepstream.analytics.success import Attempts
from stepstream.config import Settings
from stepstream.services.control import app
from stepstream.services.control.app import Controller
from stepstream.services.control.decide.canary import compared
from stepstream.services.control.history import DecisionLog
from stepstream.services.control.proposals import Proposals
from stepstream.services.control.scope import Scope, Serving
from stepstream.services.control.search_process import SearchResult, Spent
from stepstream.services.control.shadow_replays import ShadowReplays
from stepstream.services.control.signatures import TrustedKeys
from stepstream.services.control.statistics import BeforeRow, OutcomeRow, Position, Statistics
from stepstream.topics.catalogue import APPROVALS, HARNESSES, ROLLOUTS
from stepstream.topics.events import (
    new_approval,
    new_control_policy,
    new_decision_evidence,
    new_harness,
)
from stepstream.versions.harnesses import served_harnesses, version_of
from stepstream.versions.rollouts import ModelVersions

SCOPE = Scope("default", "a", "m")
SECOND_US = 1_000_000
LIMITS = """
min_trajectories = 20
change_limit = 5.0
[rules]
gradient = false
coverage = false
[canary]
shares = [0.1, 0.3]
alpha = 0.05
margin = 0.3
"""
AT_ONCE = "[levers.weights]\ncooldown_s = 0\nwatch_s = 0.001"
BY_PEOPLE = "[levers.weights]\ncooldown_s = 0\nwatch_s = 36000\napprovals = 1"
SHADOWED = f"canary.shadow = 'try'\n{AT_ONCE}"
PROMPTS = "[levers.prompt]\ncooldown_s = 0\nwatch_s = 0.001"


class Killed(BaseException):
    """The process is killed here."""


class Steps:
    """Counts the steps of all controllers, and kills at one of them."""

    def __init__(self, kill_at: int) -> None:
        self._kill_at, self.passed = kill_at, 0

    def pass_one(self) -> None:
        self.passed += 1
        if self.passed == self._kill_at:
            raise Killed


class World:
    """Committed records, and a fleet whose statistics follow from what serves it."""

    def __init__(
        self,
        policy: str,
        statistics: "Callable[[World, int], Statistics]",
        kill_at: int = 0,
        own_rules: tuple[str, ...] = (),
    ) -> None:
        self.records: list[tuple[str, Any]] = []
        self.steps = Steps(kill_at)
        self.spends, self.settings = Spent(), Settings()
        self.is_frozen = False
        self.store_fault: Exception | None = None
        """Raised by each query; None: the store answers."""
        self.webhook: Any = None
        self.follow_fault: Exception | None = None
        """Raised once the own records are known; None: the compacted topics show them."""
        entry, _, rest = policy.partition("\n") if policy.startswith("canary.") else ("", "", policy)
        limits = f"{LIMITS}{entry.removeprefix('canary.')}\n"
        self.policy, self._statistics = f"own_rules = {list(own_rules)}\n{limits}{rest}", statistics
        self.replayed = SearchResult(None, "", shadow=compared([0.0] * 30))
        """Result of each shadow replay."""

    def decisions(self) -> DecisionLog:
        log = DecisionLog()
        for topic, record in self.records:
            log.add(topic, record)
        return log

    def of(self, topic: str) -> list[Any]:
        return [record for each, record in self.records if each == topic]

    def serving(self) -> Serving:
        versions = ModelVersions()
        versions.apply_checkpoint(1, checkpoint(1, model="m", parent_version=None))
        for number, record in enumerate(self.of(ROLLOUTS)):
            versions.apply_rollout(record)
            if not number:  # version 2 is published when version 1 is fixed
                versions.apply_checkpoint(2, checkpoint(2, model="m", parent_version=1))
        return Serving(versions, {one["version"]: one for one in self.of(HARNESSES)})

    def controller(self) -> Controller:
        """Return a controller that has just started: it knows the committed records, and nothing else."""
        settings = self.settings
        proposals = Proposals(settings, cast(Any, Search(self.steps, self.spends)))
        shadows = ShadowReplays(settings, cast(Any, Search(self.steps, Spent(), self.replayed)))
        fakes = Log(self, self.policy), Producer(self), Queries(self), Sink(), proposals, self.webhook, shadows
        return Controller(settings, *[cast(Any, one) for one in fakes])

    def statistics(self, at_us: int) -> Statistics:
        return self._statistics(self, at_us)

    def approve(self) -> None:
        """Let a person approve what waits."""
        known = self.decisions()
        for one in known.in_order():
            if one["approvals"] and not known.answers_to(one["event_id"]):
                answer = new_approval(
                    event_id=f"answer to {one['event_id']}",
                    occurred_at_us=one["occurred_at_us"],
                    decision_id=one["event_id"],
                    verdict="approved",
                    author="ada",
                    role="operator",
                )
                self.records.append((APPROVALS, answer))


class Log:
    """Topics that a controller follows."""

    def __init__(self, world: World, policy: str) -> None:
        self._world, self._read = world, 0
        self.decisions = DecisionLog(keys=TrustedKeys(world.settings.control.trusted_keys))
        record = new_control_policy(
            event_id="p", occurred_at_us=0, tenant="default", name="p", version=1, document=policy, hash=""
        )
        self._policy = record
        self.read()

    def read(self) -> None:
        for topic, record in self._world.records[self._read :]:
            self.decisions.add(topic, record)
        self._read = len(self._world.records)

    def add_own(self, _records: Any) -> None:
        self.read()
        if self._world.follow_fault is not None:
            raise self._world.follow_fault

    def policies(self) -> Any:
        return [{**self._policy, "frozen": self._world.is_frozen}]

    def serving(self, _scope: Scope) -> Serving:
        return self._world.serving()

    def open_tests(self, _scopes: Any) -> int:
        return 1


class Producer:
    """Transactions: what was sent is committed by `flush`, or lost."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: list[tuple[str, Any]] = []

    def send(self, topic: str, _key: str, record: Any) -> None:
        self._world.steps.pass_one()
        self._sent.append((topic, deepcopy(record)))

    def flush(self) -> None:
        self._world.steps.pass_one()
        self._world.records += self._sent
        self._sent = []
        self._world.steps.pass_one()


class Queries:
    def __init__(self, world: World) -> None:
        self._world = world

    def scopes(self, _since_us: int) -> list[Scope]:
        self._answer()
        return [SCOPE]

    def statistics(self, _scope: Scope, _position: Any, at_us: int, *_: Any) -> Statistics:
        self._answer()
        return self._world.statistics(at_us)

    def promoted_by_hand(self, _model: str) -> list[Any]:
        return []

    def _answer(self) -> None:
        if self._world.store_fault is not None:
            raise self._world.store_fault


class Sink:
    def ask(self, at_us: int) -> Position:
        return Position("labeled-trajectories:0=9", at_us)

    def has_moved(self) -> bool:
        return True


class Search:
    """A search that takes two cycles, spends something at its begin, and ends with the controller."""

    def __init__(self, steps: Steps, spends: Spent, result: SearchResult | None = None) -> None:
        self._steps, self._polls, self._spends, self._spent = steps, 0, spends, Spent()
        self._result = result or SearchResult(proposal(), "instructions help", calls=10, tokens=100)
        self.decision_id = ""

    def start(self, decision_id: str, _scope: Scope, versions: Any, spent: Spent, task: Any = None) -> None:
        self._steps.pass_one()
        assert not self.decision_id
        self.decision_id, self._polls = decision_id, 0
        self._spent = Spent(spent.calls + self._spends.calls, spent.tokens + self._spends.tokens)

    def spent(self) -> Spent:
        return self._spent

    def poll(self) -> SearchResult | None:
        self._steps.pass_one()
        self._polls += 1
        if self._polls < 2:
            return None
        self.cancel()
        return self._result

    def cancel(self) -> None:
        self.decision_id = ""


def proposal() -> Any:
    found = new_harness(event_id="", occurred_at_us=0, tenant="default", agent="a", version="")
    found["instructions"] = "Call tools by JSON."
    headroom = new_decision_evidence(name="headroom", value=0.5, low=0.3, high=0.7, n=40)
    content = {
        "headroom": headroom,
        "proposer": "optimise/examples",
        "reason": "instructions help",
        "state": "proposed",
    }
    return {**found, **content, "version": version_of(found)}


def rows(
    canary: list[bool], stable: list[bool], version: str = "", failure: Any = "capability", name: str = ""
) -> tuple[OutcomeRow, ...]:
    """Return outcomes of both tracks in turn."""
    both = [
        OutcomeRow(
            at,
            track,
            version if track == "canary" else "",
            success,
            "",
            "f",
            "" if success else failure,
            False,
            name and f"{name}-{track}-{at}",
        )
        for at, pair in enumerate(itertools.zip_longest(canary, stable))
        for track, success in zip(("canary", "stable"), pair, strict=True)
        if success is not None
    ]
    return tuple(both)


def of_weights(world: World, at_us: int) -> Statistics:
    """First the canary is as good, then better; promoted, it turns bad."""
    served, position = world.serving().versions.served, Sink().ask(at_us)
    before = (BeforeRow("f", "", "1", Attempts(100, 80)),)
    if served.canary is None:
        is_bad = served.stable == 2
        return Statistics(position, rows([], [not is_bad] * 40), before)
    if served.canary_share in (0.0, 0.1):
        return Statistics(position, rows([True] * 40 if served.canary_share else [], [True] * 360), before)
    return Statistics(position, rows([True] * 40, [False] * 120), before)


def of_prompts(world: World, at_us: int) -> Statistics:
    """A third of the trajectories fail by format, and none with the proposed harness version."""
    served = served_harnesses(world.serving().harnesses.values())
    failing = [number % 3 > 0 for number in range(60)]
    if served.canary is not None:
        better = rows([True] * 40, [False] * 360, served.canary["version"], "format")
        return Statistics(Sink().ask(at_us), better)
    if served.stable is not None:
        return Statistics(Sink().ask(at_us), rows([], [True] * 60), (BeforeRow("f", "", "", Attempts(60, 40)),))
    return Statistics(Sink().ask(at_us), rows([], failing, failure="format"))


def tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second pass at each look at the clock."""
    times: Iterator[int] = itertools.count(1_000_000 * SECOND_US, SECOND_US)
    monkeypatch.setattr(app, "now_us", lambda: next(times))


SCENARIOS = {
    "at once": (AT_ONCE, of_weights, ["canary 2", "widen 2", "promote 2", "rollback 1"]),
    "replayed first": (SHADOWED, of_weights, ["canary 2", "widen 2", "widen 2", "promote 2", "rollback 1"]),
    "approved": (BY_PEOPLE, of_weights, ["canary 2", "widen 2", "promote 2", "rollback 1"]),
    "proposed": (
        f"{PROMPTS}\n[levers.weights]\nenabled = false",
        of_prompts,
        ["propose a", f"canary {version_of(proposal())}", f"promote {version_of(proposal())}"],
    ),
}
