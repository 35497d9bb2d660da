"""Run `stepstream demo-control` with several seeds, one after the other, and collect the figures of each run.

Run it as `.venv/bin/python bench/demo_control.py [--quick] [--seeds N,N] [--data FOLDER]
[--time-factor N]`; eight minutes a seed. Each seed draws another order of the events. `--quick` takes the short form
of one seed, which takes two minutes. The runs use free ports and one data folder, so the base model is trained once;
with `--data` the folder stays, with the report of each seed in `demo-control/seed-N`. `--time-factor` is that of the
command: on a machine with other work, the control plane gets more time for each answer. `load` is the machine's load
average over a minute, the mean of its values during the run, its own processes included.

The last line has the runs that were right in every figure (`passed`), sums over all runs, the least success after minus
before (`least_gain`), and the longest run.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from in_process.runs import commit

from stepstream.cli.demo_control import faults
from stepstream.config import environment_of, load, settings_file
from stepstream.embedded.addresses import isolated

PROFILE = "demo-control"
LOAD_S = 5.0
"""Interval at which the load average is read."""
QUICK_SEED = 1
SHORT_NAMES = {
    "tool_breaks": "tool",
    "better_examples": "examples",
    "weights_can_learn": "learn",
    "poisoned_checkpoint": "poison",
    "gameable_reward": "gamed",
    "quiet": "quiet",
}


def run_seed(seed: int, data: Path, words: list[str]) -> dict[str, Any]:
    """Run one seed, with more words of the command, and return the fields of its report, with load and exit status.

    A run that ended without a report has only the seed, the status and the end of its output.
    """
    settings = isolated(load(file=settings_file(PROFILE)), data)
    command = [sys.executable, "-m", "stepstream.cli.main", "demo-control", "--seed", str(seed), *words]
    environment = {**os.environ, **environment_of(settings), "STEPSTREAM_CONFIG": PROFILE}
    folder, kept = data / "demo-control", data / "demo-control" / f"seed-{seed}"
    kept.mkdir(parents=True, exist_ok=True)
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    loads = []
    with (kept / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            loads.append(os.getloadavg()[0])
            time.sleep(LOAD_S)
    result: dict[str, Any] = {"seed": seed, "status": process.returncode, "load": round(statistics.mean(loads), 1)}
    if not report.exists():
        return result | {"error": (kept / "output.txt").read_text("utf-8", "replace")[-500:]}
    for file in ("report.json", "report.html", "decisions.jsonl"):
        shutil.copy(folder / file, kept / file)
    result |= json.loads(report.read_text("utf-8"))
    return result


def row_of(run: dict[str, Any]) -> str:
    """Return a line of the table."""
    if "error" in run:
        return f"| {run['seed']} | no report: {run['error'].splitlines()[-1:]} | | | | | | | {run['load']} |"
    events = ", ".join(
        SHORT_NAMES[kind] + ("" if kind not in run["delays_s"] else f" {run['delays_s'][kind]}")
        for kind in run["order"]
    )
    success = [
        f"{100 * run[name]:.1f} % ({100 * run[f'{name}_interval'][0]:.0f}–{100 * run[f'{name}_interval'][1]:.0f})"
        for name in ("success_before", "success_after")
    ]
    cells = (
        run["seed"],
        events,
        f"{run['right_levers']}/{run['events']}",
        f"{run['undone']}/{run['bad_events']}",
        run["false_actions"],
        *success,
        run["minutes"],
        run["load"],
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the last line."""
    whole = [run for run in runs if "error" not in run]
    total = {name: sum(run[name] for run in whole) for name in ("right_levers", "events", "undone", "bad_events")}
    return {
        "runs": len(runs),
        "passed": sum(not faults(run) for run in whole),
        **total,
        "false_actions": sum(run["false_actions"] for run in whole),
        "least_gain": round(min((run["success_after"] - run["success_before"] for run in whole), default=0.0), 3),
        "minutes_max": max((run["minutes"] for run in whole), default=None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the short form of one seed")
    parser.add_argument("--seeds", default=",".join(map(str, range(10))), help="seeds, with commas")
    parser.add_argument("--data", type=Path, help="folder that stays")
    parser.add_argument("--time-factor", default="1", help="factor on the longest time for an answer")
    options = parser.parse_args()
    seeds = [QUICK_SEED] if options.quick else [int(seed) for seed in options.seeds.split(",")]
    words = ["--time-factor", options.time_factor, *(["--short"] if options.quick else [])]
    runs = []
    print(f"commit {commit()}; delays in seconds after each event")
    print("| seed | events | right | undone | false | success before | after | minutes | load |", flush=True)
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="stepstream-bench-") as scratch:
        data = (options.data or Path(scratch)).absolute()
        for seed in seeds:
            runs.append(run_seed(seed, data, words))
            print(row_of(runs[-1]), flush=True)
    print(json.dumps(summary(runs)))


if __name__ == "__main__":
    main()
