"""Measure the CPU time of a step of the demo by process.

Run it as `.venv/bin/python bench/demo_cpu.py [--seed N]`; two to five minutes. It runs the demo once on free ports and
fresh data, and divides the CPU time of each process and its children by the steps, from the start of the agents to the
target. `outside_ms` is of all processes but the learner and the inference workers; it includes the broker. CPU time
grows on a loaded machine too: compare runs by the unchanged process `worker-0`.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from asynchrony.real import run_demo


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of tasks and learner")
    seed = parser.parse_args().seed
    with tempfile.TemporaryDirectory(prefix="stepstream-bench-") as name:
        run = run_demo("asynchronous", seed, Path(name))
    if "steps" not in run:
        sys.exit(f"the demo missed its target: {run['error']}")
    each = {process: seconds / run["steps"] * 1000 for process, seconds in run["cpu_s"].items()}
    print("| process | CPU ms a step |\n|---|---|")
    for process, ms in sorted(each.items(), key=lambda item: -item[1]):
        print(f"| {process} | {ms:.2f} |")
    outside = sum(ms for process, ms in each.items() if process != "learner" and not process.startswith("worker-"))
    figures = {"steps": run["steps"], "seconds": run["seconds"], "outside_ms": outside}
    figures |= {"outside_without_broker_ms": outside - each["broker"]} | {f"{name}_ms": ms for name, ms in each.items()}
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
