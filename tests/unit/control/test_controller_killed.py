"""Kill the controller at every step of a rollout, in process: what it had decided is done once, and in order.

A step is a point of a transaction (a record is sent, the commit begins, the commit is over) or of a search. A kill
loses all that is not committed; the next controller knows the committed records only.
"""

import itertools
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest
from sample_records import checkpoint
from stack_fixtures import with_settings

from stepstream.analytics.success import Attempts
from stepstream.config import Settings
from stepstream.services.control import app
from stepstream.services.control.app import Controller
from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.event import event_of
from stepstream.services.control.decide.own_rules import OwnRule
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import Finding
from stepstream.services.control.history import DecisionLog
from stepstream.services.control.proposals import Proposals
from stepstream.services.control.scope import Scope, Serving
from stepstream.services.control.search_process import SearchResult, Spent
from stepstream.services.control.simulate.recorded import read_lines
from stepstream.services.control.statistics import OutcomeRow, Position, Statistics
from stepstream.topics.catalogue import APPROVALS, DECISION_ACTS, DECISIONS, HARNESSES, ROLLOUTS
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
        self.policy, self._statistics = f"own_rules = {list(own_rules)}\n{LIMITS}{policy}", statistics

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
        fakes = Log(self, self.policy), Producer(self), Queries(self), Sink(), proposals
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
        self.decisions = DecisionLog()
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
        return [SCOPE]

    def statistics(self, _scope: Scope, _position: Any, at_us: int, *_: Any) -> Statistics:
        return self._world.statistics(at_us)

    def promoted_by_hand(self, _model: str) -> list[Any]:
        return []


class Sink:
    def ask(self, at_us: int) -> Position:
        return Position("labeled-trajectories:0=9", at_us)


class Search:
    """A search that takes two cycles, spends something at its begin, and ends with the controller."""

    def __init__(self, steps: Steps, spends: Spent) -> None:
        self._steps, self._polls, self._spends, self._spent = steps, 0, spends, Spent()
        self.decision_id = ""

    def start(self, decision_id: str, _scope: Scope, versions: Any, spent: Spent) -> None:
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
        return SearchResult(proposal(), "instructions help", calls=10, tokens=100)

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
    before = {"f": Attempts(100, 80)}
    if served.canary is None:
        is_bad = served.stable == 2
        return Statistics(position, rows([], [not is_bad] * 40), before)
    if served.canary_share == 0.1:
        return Statistics(position, rows([True] * 40, [True] * 360), before)
    return Statistics(position, rows([True] * 40, [False] * 120), before)


def of_prompts(world: World, at_us: int) -> Statistics:
    """A third of the trajectories fail by format, and none with the proposed harness version."""
    served = served_harnesses(world.serving().harnesses.values())
    failing = [number % 3 > 0 for number in range(60)]
    if served.canary is not None:
        better = rows([True] * 40, [False] * 360, served.canary["version"], "format")
        return Statistics(Sink().ask(at_us), better)
    if served.stable is not None:
        return Statistics(Sink().ask(at_us), rows([], [True] * 60), {"f": Attempts(60, 40)})
    return Statistics(Sink().ask(at_us), rows([], failing, failure="format"))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second pass at each look at the clock."""
    times: Iterator[int] = itertools.count(1_000_000 * SECOND_US, SECOND_US)
    monkeypatch.setattr(app, "now_us", lambda: next(times))


SCENARIOS = {
    "at once": (AT_ONCE, of_weights, ["canary 2", "widen 2", "promote 2", "rollback 1"]),
    "approved": (BY_PEOPLE, of_weights, ["canary 2", "widen 2", "promote 2", "rollback 1"]),
    "proposed": (
        f"{PROMPTS}\n[levers.weights]\nenabled = false",
        of_prompts,
        ["propose a", f"canary {version_of(proposal())}", f"promote {version_of(proposal())}"],
    ),
}


def run(name: str, kill_at: int = 0) -> World:
    """Run a controller, after its death the next one, until the rollout is complete and for two more cycles."""
    policy, statistics, expected = SCENARIOS[name]
    world = World(policy, statistics, kill_at)
    controller = world.controller()
    at_rest = 0
    while at_rest < 3:
        try:
            controller.run_once()
        except Killed:
            controller = world.controller()
        world.approve()
        known = world.decisions()
        states = [known.state_of(one) for one in known.in_order()]
        assert len(states) <= len(expected), f"killed at step {kill_at}"
        at_rest += states == ["done"] * len(expected)
    return world


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_controller_killed_at_any_step_does_each_decision_once(name: str) -> None:
    whole = run(name)
    assert whole.steps.passed > 15
    for kill_at in range(1, whole.steps.passed + 1):
        world = run(name, kill_at)
        known = world.decisions()
        done = [f"{one['action']} {one['target']}" for one in known.in_order()]
        assert done == SCENARIOS[name][2], f"killed at step {kill_at}"
        acts = [one["decision_id"] for one in world.of(DECISION_ACTS) if one["state"] != "started"]
        assert sorted(acts) == sorted(known.pulls), f"killed at step {kill_at}"
        for topic, fields in ((ROLLOUTS, ("action", "stable_version", "canary_version")), (HARNESSES, ("state",))):
            kept = [[one[field] for field in fields] for one in world.of(topic)]
            assert kept == [[one[field] for field in fields] for one in whole.of(topic)], f"killed at step {kill_at}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_replay_of_recorded_inputs_decides_what_is_on_the_log_byte_for_byte(name: str, tmp_path: Path) -> None:
    policy, statistics, expected = SCENARIOS[name]
    world = World(policy, statistics)
    world.settings = with_settings(world.settings, control={"record": tmp_path})
    controller = world.controller()
    while len(world.decisions().pulls) < len(expected):
        controller.run_once()
        world.approve()
    lines = [line for file in sorted(tmp_path.iterdir()) for line in file.read_bytes().splitlines()]
    parsed = ControlPolicy.parse(world.policy)
    again = {one.id: one for one in (decide(each.snapshot, each.history, parsed) for each in read_lines(lines))}
    for decision in world.of(DECISIONS):
        assert event_of(again[decision["event_id"]]) == decision


def test_a_frozen_agent_ends_the_search() -> None:
    policy, statistics, _ = SCENARIOS["proposed"]
    world = World(policy, statistics)
    controller = world.controller()
    while not world.of(DECISION_ACTS):
        controller.run_once()
    world.is_frozen = True
    controller.run_once()
    ends = [(one["state"], one["reason"]) for one in world.of(DECISION_ACTS)]
    assert ends == [("started", ""), ("failed", "the agent is frozen")]
    assert not controller._proposals._process.decision_id


def test_a_search_that_takes_too_long_fails_also_after_a_restart() -> None:
    policy, statistics, _ = SCENARIOS["proposed"]
    world = World(policy, statistics)
    controller = world.controller()
    while not world.of(DECISION_ACTS):
        controller.run_once()
    [began] = world.of(DECISION_ACTS)
    began["occurred_at_us"] -= round(Settings().control.propose_timeout_s * 1e6)
    world.controller().run_once()
    ended = world.of(DECISION_ACTS)[1]
    assert (ended["state"], "raise control.propose_timeout_s" in ended["reason"]) == ("failed", True)


def test_controllers_that_crash_during_a_search_spend_its_budget_once() -> None:
    policy, statistics, _ = SCENARIOS["proposed"]
    world = World(policy, statistics)
    limits = Settings().optimise
    world.spends = Spent(limits.calls * 2 // 5, 1000)
    world.controller().run_once()  # decides
    starts, [decision] = 0, world.of(DECISIONS)
    while world.decisions().state_of(decision) != "failed":
        starts += 1
        controller = world.controller()
        controller.run_once()  # starts the search
        controller.run_once()  # writes what it has spent, then crashes
        assert starts < 9
    acts = world.decisions().acts_of(decision["event_id"])
    spent = [(one["state"], one["calls"], one["tokens"]) for one in acts]
    of_one = limits.calls * 2 // 5
    assert spent[:-1] == [("started", 0, 0), *[("started", i * of_one, i * 1000) for i in (1, 2, 3)]]
    assert f"after {3 * of_one} of {limits.calls} calls" in acts[-1]["reason"]
    assert len({one["event_id"] for one in acts}) == len(acts)


def test_a_proposal_on_a_harness_version_that_was_replaced_fails() -> None:
    policy, statistics, _ = SCENARIOS["proposed"]
    world = World(policy, statistics)
    controller = world.controller()
    while not world.of(DECISION_ACTS):
        controller.run_once()
    other = replace_stable()
    world.records.append((HARNESSES, other))
    while len(world.of(DECISION_ACTS)) < 2:
        controller.run_once()
    ended = world.of(DECISION_ACTS)[1]
    assert (ended["state"], "became stable during the search" in ended["reason"]) == ("failed", True)
    assert world.of(HARNESSES) == [other]


def test_the_own_rules_of_a_policy_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("", "weights", "pause", "m", "it is Friday", safety=True)
    mine = OwnRule("friday", "shop 1", lambda *_: finding)
    monkeypatch.setattr("stepstream.services.control.policies.load_rules", lambda *_: (mine,))
    world = World(
        "[levers.weights]\nwatch_s = 3600", lambda _, at_us: Statistics(Sink().ask(at_us)), own_rules=("friday",)
    )
    world.controller().run_once()
    assert [(one["rule"], one["reason"]) for one in world.of(DECISIONS)] == [("friday", "it is Friday")]


def test_a_policy_whose_rule_is_not_installed_holds() -> None:
    world = World("[levers.weights]\nenabled = false", of_prompts, own_rules=("friday",))
    world.controller().run_once()
    [held] = world.of(DECISIONS)
    assert (held["action"], held["reason"]) == ("hold", "the rule friday of the policy is not installed")


def test_revised_outcomes_hold_once_also_a_rollback() -> None:
    """Another reward specification turns half of the successes of a promoted version into failures."""
    failures = 0

    def statistics(world: World, at_us: int) -> Statistics:
        if world.serving().versions.served.stable != 2:
            return of_weights(world, at_us)
        stable = rows([], [i >= failures for i in range(40)], name="t")
        return Statistics(Sink().ask(at_us), stable, {"f": Attempts(100, 80)})

    world = World(AT_ONCE, statistics)
    controller = world.controller()
    while len(world.decisions().pulls) < 3:
        controller.run_once()
    controller.run_once()
    failures = 20
    controller.run_once()
    assert [one["action"] for one in world.decisions().in_order()] == ["canary", "widen", "promote"]
    held = world.of(DECISIONS)[-1]
    reason = "statistics of an earlier decision were revised: wait for the next snapshot"
    assert (held["action"], held["reason"]) == ("hold", reason)
    controller.run_once()
    assert world.decisions().in_order()[-1]["action"] == "rollback"


def replace_stable() -> Any:
    return new_harness(
        event_id="",
        occurred_at_us=0,
        tenant="default",
        agent="a",
        version="other",
        instructions="Other.",
        state="stable",
        revision=1,
    )
