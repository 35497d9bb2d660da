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
from functools import partial

from control_fleets.controllers import FixedHorizon, TrainEvery, WeeklyReview
from in_process.runs import commit

from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.simulate.fleet import Controller, Decider, Result, run
from stepstream.services.control.simulate.scenarios import SCENARIOS

QUICK_FLEETS = 5

CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "decide": partial(Decider, ControlPolicy()),
    "train every 1000": TrainEvery,
    "A/B 400": FixedHorizon,
    "weekly review": WeeklyReview,
}


def simulate(scenario: str, controller: str, seed: int) -> Result:
    """Run one fleet."""
    return run(SCENARIOS[scenario], CONTROLLERS[controller](), seed)


def row(scenario: str, controller: str, fleets: list[Result]) -> dict[str, object]:
    """Return the figures of a scenario."""
    delays = [one.delay for one in fleets if one.delay is not None]
    return {
        "scenario": scenario,
        "controller": controller,
        "fleets": len(fleets),
        "right_lever": statistics.mean(one.right for one in fleets),
        "false_promotions": statistics.mean(one.false_promotion for one in fleets),
        "harm": round(statistics.mean(one.harm for one in fleets), 1),
        "gained": round(statistics.mean(one.gained for one in fleets), 1),
        "delay": statistics.median(delays) if delays else None,
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
                fleets = pool.map(partial(simulate, scenario, controller), seeds, chunksize=10)
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
