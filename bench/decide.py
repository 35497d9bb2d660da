"""Measure the control plane's decisions on simulated fleets, beside three baselines.

Run it as `.venv/bin/python bench/decide.py [--quick] [--fleets N] [--scenario NAME]`. It needs no stack and counts
trajectories, not seconds, so it may run beside other work. Each fleet serves 180 ticks of two hours; its fault begins
at a tick between 20 and 50 that the seed draws. Baselines: `train every 1000` serves each new version to all, as AReaL
2.0 does; `A/B 400` tries each candidate on half of the traffic until 400 trajectories an arm; `weekly review` is a
person who looks every 84 ticks and is always right.

`right_lever`: share of fleets in which every required action was taken after the fault began, and no other action.
`false_promotions`: share of fleets that served a version to all that is no better than its parent. `harm`: successes
lost to the fault and to bad versions, a fleet. `delay`: median of trajectories from the fault to the last required
action, over the fleets that took them all.
"""

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from control_fleets.controllers import Controller, Decider, FixedHorizon, Pulled, TrainEvery, WeeklyReview
from control_fleets.world import World
from in_process.runs import commit

from stepstream.services.control.decide.policy import ControlPolicy

TICKS = 180
QUICK_FLEETS = 5


@dataclass(frozen=True)
class Scenario:
    faults: frozenset[str]
    required: frozenset[Pulled] = frozenset()
    allowed: frozenset[Pulled] = frozenset()
    """Further actions that are no fault."""
    traffic: int = 50


def _trial(lever: str) -> frozenset[Pulled]:
    return frozenset({("canary", lever), ("widen", lever), ("promote", lever)})


_UNDECIDED = frozenset({("canary", "weights"), ("widen", "weights"), ("rollback", "weights")})

SCENARIOS = {
    "nothing": Scenario(frozenset()),
    "tool breaks": Scenario(frozenset({"tool"}), frozenset({("disable", "tools")})),
    "better examples": Scenario(frozenset({"examples"}), frozenset({("canary", "prompt"), ("promote", "prompt")}),
                                _trial("prompt")),
    "weights can learn": Scenario(frozenset({"weights"}), frozenset({("train", "weights"), ("promote", "weights")}),
                                  _trial("weights")),
    "poisoned checkpoint": Scenario(frozenset({"poison"}), frozenset({("rollback", "weights")}), _UNDECIDED),
    "equal version": Scenario(frozenset({"equal"}), frozenset(), _UNDECIDED),
    "gamed reward": Scenario(frozenset({"gamed"}), frozenset({("pause", "weights")})),
    "slow drift": Scenario(frozenset({"drift"}), frozenset({("rollback", "weights")})),
    "changed task mix": Scenario(frozenset({"mix"})),
    "tool and examples": Scenario(
        frozenset({"tool", "examples"}),
        frozenset({("disable", "tools"), ("canary", "prompt"), ("promote", "prompt")}),
        _trial("prompt"),
    ),
    "tool and poison": Scenario(
        frozenset({"tool", "poison"}), frozenset({("disable", "tools"), ("rollback", "weights")}), _UNDECIDED
    ),
    "tiny traffic": Scenario(frozenset({"equal"}), frozenset(), _UNDECIDED, traffic=2),
}  # fmt: skip

CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "decide": partial(Decider, ControlPolicy()),
    "train every 1000": TrainEvery,
    "A/B 400": FixedHorizon,
    "weekly review": WeeklyReview,
}


@dataclass(frozen=True)
class Fleet:
    """Result of one fleet."""

    right: bool
    false_promotion: bool
    harm: float
    gained: float
    delay: int | None


def run(scenario: Scenario, controller: str, seed: int) -> Fleet:
    """Run one fleet."""
    rng = np.random.default_rng(seed)
    world = World(scenario.faults, scenario.traffic, int(rng.integers(20, 51)), rng)
    decider = CONTROLLERS[controller]()
    done: dict[Pulled, int] = {}
    false_promotion = wrong = False
    for _ in range(TICKS):
        world.advance()
        serving = dict(world.serving)
        for pulled, version in decider.act(world):
            action, lever = pulled
            if action == "promote":
                false_promotion |= world.gain[version] <= world.gain[serving[lever]]
            wrong |= world.tick < world.onset or pulled not in scenario.required | scenario.allowed
            done.setdefault(pulled, world.served)
    complete = scenario.required <= done.keys()
    began = world.onset * scenario.traffic
    delay = max((done[pulled] for pulled in scenario.required), default=began) - began if complete else None
    return Fleet(complete and not wrong, false_promotion, world.harm, world.gained, delay)


def row(scenario: str, controller: str, fleets: list[Fleet]) -> dict[str, object]:
    """Return the figures of a scenario."""
    delays = [one.delay for one in fleets if one.delay is not None]
    needed = bool(SCENARIOS[scenario].required)
    return {
        "scenario": scenario,
        "controller": controller,
        "fleets": len(fleets),
        "right_lever": statistics.mean(one.right for one in fleets),
        "false_promotions": statistics.mean(one.false_promotion for one in fleets),
        "harm": round(statistics.mean(one.harm for one in fleets), 1),
        "gained": round(statistics.mean(one.gained for one in fleets), 1),
        "delay": statistics.median(delays) if delays and needed else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_FLEETS} fleets a scenario")
    parser.add_argument("--fleets", type=int, default=1000, help="fleets a scenario and controller")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="only these scenarios")
    parser.add_argument("--processes", type=int, default=2, help="processes that simulate")
    arguments = parser.parse_args()
    seeds = range(QUICK_FLEETS if arguments.quick else arguments.fleets)
    rows = []
    print(f"{'scenario':20} {'controller':17} {'right':>6} {'false':>6} {'harm':>8} {'gained':>8} {'delay':>7}")
    with multiprocessing.Pool(arguments.processes) as pool:
        for scenario in arguments.scenario or SCENARIOS:
            for controller in CONTROLLERS:
                fleets = pool.map(partial(run, SCENARIOS[scenario], controller), seeds)
                rows.append(one := row(scenario, controller, fleets))
                print(
                    f"{scenario:20} {controller:17} {one['right_lever']:6.3f} {one['false_promotions']:6.3f} "
                    f"{one['harm']:8} {one['gained']:8} {one['delay'] if one['delay'] is not None else '-':>7}",
                    flush=True,
                )
    ours = [one for one in rows if one["controller"] == "decide"]
    print(
        json.dumps(
            {
                "commit": commit(),
                "fleets": len(seeds),
                "right_lever": min(one["right_lever"] for one in ours),  # type: ignore[type-var]
                "false_promotions": max(one["false_promotions"] for one in ours),  # type: ignore[type-var]
                "rows": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
