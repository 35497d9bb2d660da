"""Measure the time to the demo's target: asynchronous against synchronous, under several staleness bounds.

Run it as `.venv/bin/python bench/async.py [--quick] [--part real|simulated] [--seeds N] [--folder FOLDER]`; finished
runs are kept in FOLDER, so it can be stopped and continued. `--report FOLDER` prints the page of these runs.

Real. The demo's whole stack on this machine, from the start of the agents to the target on held-out tasks. Synchronous:
agents make the attempts for one version, wait until it is trained and published, and continue (`fleet.max_ahead=0`).
Asynchronous: agents may be one version ahead, as in the demo. Nothing else differs. Both modes of a seed run one after
the other, and seeds alternate the order. The bench needs an idle machine.

Simulated. The same loop on a virtual clock. Generation, admission, labels, buffer, updates and the demo's target are
real; only durations come from measured stage times. A staleness bound of k lets agents be k versions ahead and drops
staler attempts; 0 is the synchronous mode. Records are decoded between updates, not beside them. Decoupled: clipped
against the policy at the start of the update, weighted by the truncated ratio to the behaviour policy. Coupled: clipped
against the behaviour policy. `--calibrate` measures the stages again, from this process and the real runs in FOLDER.
"""

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asynchrony.machines import MACHINES, wanted_simulations
from asynchrony.page import figures, page
from asynchrony.stages import digest
from in_process.runs import Run, commit, finish, read_runs

REAL, SIMULATED = "real.jsonl", "simulated.jsonl"
DATA = Path(__file__).parents[1] / "var" / "bench"


def real(key: Mapping[str, Any]) -> Run:
    from asynchrony.real import run_demo

    return {**run_demo(key["mode"], key["seed"], DATA / "async" / "stack"), "commit": commit()}


def wanted_real(seeds: int) -> list[dict[str, Any]]:
    """Return both modes of each seed; seeds alternate the order."""
    modes = ["asynchronous", "synchronous"]
    return [{"mode": mode, "seed": seed} for seed in range(seeds) for mode in modes[:: 1 - 2 * (seed % 2)]]


def simulate(key: Mapping[str, Any], **demo: Any) -> Run:
    """Run on the virtual clock; `demo` replaces fields of the demo's settings."""
    from asynchrony.simulation import Loop
    from asynchrony.stages import read_stages
    from credit import settings_of
    from in_process import base_model

    machine = MACHINES[key["machine"]]
    settings = machine.settings(settings_of("lookup", "dr_grpo", key["seed"]), key["bound"], key["objective"])
    settings = settings.model_copy(update={"demo": settings.demo.model_copy(update=demo)})
    loop = Loop(settings, base_model(settings), key["seed"], machine.stages(read_stages()), machine.cores)
    return {**loop.run(600.0), "commit": commit()}


class Simulations:
    """Simulates runs; a run that held back and dropped nothing also answers for every greater bound."""

    def __init__(self, done: list[Run]) -> None:
        self._unlimited = {_without_bound(run): run for run in done if _is_unlimited(run)}

    def __call__(self, key: Mapping[str, Any]) -> Run:
        known = self._unlimited.get(_without_bound(key))
        if known is not None and _bound(known) < _bound(key):
            return {name: value for name, value in known.items() if name not in key}
        run = simulate(key)
        if _is_unlimited(run):
            self._unlimited.setdefault(_without_bound(key), {**key, **run})
        return run


def _is_unlimited(run: Run) -> bool:
    return run.get("held_back") == 0 and run["stale_dropped"] == 0


def _without_bound(key: Mapping[str, Any]) -> tuple[Any, ...]:
    return key["machine"], key["objective"], key["seed"], key["stages"]


def _bound(key: Mapping[str, Any]) -> float:
    return math.inf if key["bound"] is None else key["bound"]


def calibrate(runs: list[Run]) -> None:
    """Write stages.json from this machine and the real runs."""
    from asynchrony.stages import FILE, measure_model, measure_stack
    from credit import settings_of
    from in_process import base_model

    settings = settings_of("lookup", "dr_grpo", 0)
    stages = measure_stack(measure_model(settings, base_model(settings)), runs)
    FILE.write_text(json.dumps({"commit": commit(), "stages": dataclasses.asdict(stages)}, indent=2) + "\n")
    print(FILE.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two simulated runs to a low target: under a minute")
    parser.add_argument("--part", choices=["real", "simulated"], help="run only one part")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, default=DATA / "async", help="finished runs: real.jsonl, simulated.jsonl"
    )
    parser.add_argument("--calibrate", action="store_true", help="only measure the stages and write stages.json")
    parser.add_argument("--report", type=Path, help="only print the page of this folder")
    arguments = parser.parse_args()
    folder = arguments.report or arguments.folder
    if arguments.calibrate:
        calibrate(read_runs(folder / REAL))
        return
    if arguments.quick:
        keys = [{"machine": "separate", "bound": bound, "objective": "decoupled", "seed": 0} for bound in (0, 1)]
        runs: list[Run] = []
        simulated = [{**key, **simulate(key, target=0.6, window=256)} for key in keys]
    elif arguments.report:
        runs = read_runs(folder / REAL)
        simulated = [run for run in read_runs(folder / SIMULATED) if run["stages"] == digest()]
    else:
        runs = finish(folder / REAL, wanted_real(arguments.seeds), real) if arguments.part != "simulated" else []
        file = folder / SIMULATED
        wanted = wanted_simulations(arguments.seeds) if arguments.part != "real" else []
        simulated = finish(file, wanted, Simulations(read_runs(file)))
    print(page(__doc__ or "", runs, simulated), json.dumps(figures(runs, simulated)), sep="\n\n")


if __name__ == "__main__":
    main()
