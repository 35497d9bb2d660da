"""Measure the samples that each advantage rule needs to reach the target, on the demo's task and a longer one.

Run it as `.venv/bin/python bench/credit.py [--quick] [--out FILE]`; `--report FILE` prints the page of finished runs.
It needs no stack: agents play through the inference engine's batch, and the learner's own trainer learns from their
labels, in one process. It counts samples, not seconds, so it may run beside other work.

Each run starts from the same warm-started base model of its task and learns synchronously, by the demo's recipe: 16
groups of 8 attempts a version, two updates, the same learning rate for every rule. A group without a gradient under its
rule (for most, one whose rewards are all equal) is replaced; its attempts count as samples. After each version that
passes a multiple of 256 samples, the policy attempts the same held-out tasks once each, at temperature 1. Samples to
target count up to the first evaluation at or above the target. A seed determines the training tasks, every draw and
the minibatches.
"""

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from in_process import Conversation, Policy, Renderer, base_model, evaluate, play
from in_process.generating import held_out
from in_process.runs import Run, commit, finish, machine, read_runs
from in_process.summary import describe_coverage, format_interval, median_interval

from stepstream.config import LearnerSettings, Settings, load, settings_file
from stepstream.services.fleet.environment import load_environment
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.continuous_batch import Batch
from stepstream.services.inference.llama import LlamaWeights

RULES: tuple[str, ...] = get_args(LearnerSettings.model_fields["advantage"].annotation)
DEFAULT: str = LearnerSettings.model_fields["advantage"].default
EVERY = 256
CONTEXT = 256
LOSS_OF = {"vtrace": {"STEPSTREAM_LEARNER_LOSS_WEIGHT": "none"}}
"""Loss settings that a rule requires."""


@dataclass(frozen=True, slots=True)
class Task:
    profile: str
    held_out: int
    cap: int
    """Samples after which a run ends without the target."""


TASKS = {"lookup": Task("demo", 256, 4096), "trail": Task("trail", 192, 4096)}


def settings_of(task: str, rule: str, seed: int) -> Settings:
    """Return the task's configuration under a rule, without this shell's environment."""
    variables = {
        "STEPSTREAM_LEARNER_ADVANTAGE": rule,
        "STEPSTREAM_LEARNER_SEED": str(seed),
        "STEPSTREAM_PATHS_DATA": str(Path(__file__).parents[1] / "var" / "bench"),
    }
    variables |= LOSS_OF.get(rule, {})
    return load(variables, settings_file(TASKS[task].profile))


def learn(key: Mapping[str, Any], cap: int | None = None) -> Run:
    """Run to the target or to the cap."""
    task, seed = TASKS[key["task"]], int(key["seed"])
    settings = settings_of(key["task"], key["rule"], seed)
    base = base_model(settings)
    began = time.process_time()
    torch.set_num_threads(1)
    renderer = Renderer(ChatTokenizer(base), load_environment(settings.fleet.environment))
    batch = Batch(LlamaWeights(base), 0, settings.inference.max_batch, CONTEXT)
    policy = Policy(settings, base)
    tasks = held_out(renderer, task.held_out)
    stream = renderer.environment.tasks(seed + 1, "train")
    samples = groups = 0
    curve = [(0, evaluate(batch, renderer, tasks, "held out"))]
    limit = cap or task.cap
    while samples < limit and curve[-1][1] < settings.demo.target:
        while samples < limit and (missing := policy.missing_groups()):
            attempts = []
            for _ in range(missing):
                groups, task_id = groups + 1, next(stream)
                names = [f"{groups}/{number}" for number in range(policy.config.group_size)]
                attempts += [Conversation(task_id, f"g{groups}", name, seed, renderer) for name in names]
            play(batch, attempts)
            policy.read(attempts)
            samples += len(attempts)
        for _ in range(policy.config.updates_per_checkpoint):
            policy.update()
        batch.swap(policy.publish(), policy.version)
        if samples // EVERY > curve[-1][0] // EVERY:
            curve.append((samples, evaluate(batch, renderer, tasks, "held out")))
    reached = curve[-1][1] >= settings.demo.target
    return {
        "samples": curve[-1][0] if reached else None,
        "curve": curve,
        "versions": policy.version,
        "cpu_s": round(time.process_time() - began, 1),
        "commit": commit(),
    }


def page(runs: list[Run]) -> str:
    """Return the tables of docs/measured/credit.md."""
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        "# Advantage rules: samples to target",
        "",
        f"`bench/credit.py` on {machine(runs)}.",
        "",
        (__doc__ or "").split("\n\n")[2].strip(),
        "",
        f"Samples to target: median of {len(seeds)} seeds, with {describe_coverage(len(seeds))}. "
        f"Against `{DEFAULT}`, the default: the same statistics of the ratio to the same seed's samples under it; "
        "below 1 is better.",
    ]
    for task in TASKS:
        task_runs = [run for run in runs if run["task"] == task]
        if task_runs:
            lines += ["", f"## {task}", "", *table(task, task_runs)]
    return "\n".join(lines)


def table(task: str, runs: list[Run]) -> list[str]:
    """Return one row a rule, the quickest first."""
    start = sum(run["curve"][0][1] for run in runs) / len(runs)
    target = settings_of(task, DEFAULT, 0).demo.target
    rows = []
    default = {run["seed"]: run["samples"] for run in runs if run["rule"] == DEFAULT}
    for rule in sorted({run["rule"] for run in runs}, key=lambda rule: order(rule, runs)):
        rule_runs = [run for run in runs if run["rule"] == rule]
        reached = sum(run["samples"] is not None for run in rule_runs)
        ratios = [
            run["samples"] / default[run["seed"]] if run["samples"] is not None else None
            for run in rule_runs
            if default.get(run["seed"])
        ]
        samples = format_interval([run["samples"] for run in rule_runs])
        rows.append(f"| {rule} | {samples} | {format_interval(ratios, 2)} | {reached} of {len(rule_runs)} |")
    return [
        f"From {start:.1%} to {target:.0%} of {TASKS[task].held_out} held-out tasks, at most {TASKS[task].cap:,} "
        "samples.",
        "",
        f"| rule | samples to target | against {DEFAULT} | reached |",
        "|---|---|---|---|",
        *rows,
    ]


def order(rule: str, runs: list[Run]) -> tuple[float, float]:
    samples = [run["samples"] for run in runs if run["rule"] == rule]
    return median_interval(samples)[0], sum(each is None for each in samples)


def figures(runs: list[Run]) -> dict[str, Any]:
    """Return median samples by task and rule; null where the median run did not reach the target."""
    by_task: dict[str, Any] = {}
    for task in TASKS:
        by_rule = {rule: [r["samples"] for r in runs if r["task"] == task and r["rule"] == rule] for rule in RULES}
        medians = {rule: median_interval(samples)[0] for rule, samples in by_rule.items() if samples}
        by_task[f"{task}_samples_to_target"] = {r: round(m) if math.isfinite(m) else None for r, m in medians.items()}
    return by_task | {"seeds": len({run["seed"] for run in runs})}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rules, one seed, few samples: under a minute")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--out", type=Path, help="file of finished runs, resumed; default: var/bench/credit.jsonl")
    parser.add_argument("--report", type=Path, help="only print the page of this file of finished runs")
    arguments = parser.parse_args()
    if arguments.report:
        runs = read_runs(arguments.report)
    elif arguments.quick:
        wanted = [{"task": "lookup", "rule": rule, "seed": 0} for rule in (DEFAULT, "gigpo")]
        runs = [{**key, **learn(key, cap=600)} for key in wanted]
    else:
        out = arguments.out or Path(__file__).parents[1] / "var" / "bench" / "credit.jsonl"
        wanted = [
            {"task": task, "rule": rule, "seed": seed}
            for seed in range(arguments.seeds)
            for task in arguments.tasks
            for rule in arguments.rules
        ]
        runs = finish(out, wanted, learn)
    print(page(runs), json.dumps(figures(runs)), sep="\n\n")


if __name__ == "__main__":
    main()
