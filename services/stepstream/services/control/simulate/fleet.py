"""Run a synthetic fleet under the decisions of a controller, and count what they did. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.own_rules import OwnRule
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import CANARY_RULES, Decision, Lever, Past, past_of
from stepstream.services.control.simulate.scenarios import Pulled, Scenario
from stepstream.services.control.simulate.world import World

TICKS = 180
_ONSET = (20, 51)
"""Ticks between which the fault begins; the second is excluded."""


class Controller(Protocol):
    """Acts on a world after each tick."""

    def act(self, world: World) -> list[tuple[Pulled, str]]:
        """Act, and return what was pulled, with the version that it serves or takes back."""
        ...


@dataclass(frozen=True)
class Result:
    """Result of one fleet."""

    right: bool
    """True if all required actions were taken after the fault began, and no other."""
    false_promotion: bool
    """True if a version was served to all that is no better than its parent."""
    harm: float
    """Successes lost to the fault and to bad versions."""
    gained: float
    """Successes gained, minus those lost."""
    delay: int | None
    """Trajectories from the fault to the last required action; None: not all were taken, or none is required."""
    onset_us: int
    """Time at which the fault begins."""


class Decider:
    """The decision function with a policy."""

    def __init__(self, policy: ControlPolicy, own: Sequence[OwnRule] = ()) -> None:
        self._policy, self._own = policy, own
        self._past: list[Past] = []
        self.decisions: list[Decision] = []
        """Decisions other than `hold`."""

    def act(self, world: World) -> list[tuple[Pulled, str]]:
        """Act, and return what was pulled, with the version that it serves or takes back."""
        decision = decide(world.snapshot(), world.history(self._past), self._policy, self._own)
        if decision.action == "hold" or decision.lever is None:
            return []
        self._past.append(past_of(decision))
        self.decisions.append(decision)
        _apply(world, decision, decision.lever)
        return [((decision.action, decision.lever), decision.target)]


def run(scenario: Scenario, controller: Controller, seed: int) -> Result:
    """Run one fleet for `TICKS` ticks; equal arguments give equal results."""
    rng = np.random.default_rng(seed)
    world = World(scenario.faults, scenario.traffic, int(rng.integers(*_ONSET)), rng)
    done: dict[Pulled, int] = {}
    false_promotion = wrong = False
    for _ in range(TICKS):
        world.advance()
        serving = dict(world.serving)
        for pulled, version in controller.act(world):
            action, lever = pulled
            if action == "promote":
                false_promotion |= world.gain[version] <= world.gain[serving[lever]]
            wrong |= world.tick < world.onset or pulled not in scenario.required | scenario.allowed
            done.setdefault(pulled, world.served)
    complete = scenario.required <= done.keys()
    began = world.onset * scenario.traffic
    delay = max(done[pulled] for pulled in scenario.required) - began if complete and scenario.required else None
    return Result(complete and not wrong, false_promotion, world.harm, world.gained, delay, world.onset_us)


def _apply(world: World, decision: Decision, lever: Lever) -> None:
    match decision.action:
        case "canary":
            chosen = next(one for one in world.candidates if one.version == decision.target)
            world.start_canary(chosen, decision.share)
        case "widen":
            assert world.canary is not None
            world.canary = replace(world.canary, share=decision.share)
        case "promote":
            world.serve(lever, decision.target)
        case "disable":
            world.tool_disabled = True
        case "rollback" if decision.rule in CANARY_RULES:
            world.end_canary()
        case "rollback":
            world.take_back(lever, decision.target)
        case "train":
            world.train()
        case "pause":
            world.learning = False
