"""Format the page and the figures of finished runs. Pure."""

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

from in_process.runs import Run, machine
from in_process.summary import describe_coverage, format_interval, median_interval

from asynchrony.machines import BOUNDS, MACHINES, OBJECTIVES
from asynchrony.stages import FILE

PUBLISHED = 2.77
ACTIVITIES = ("wait", "read", "fold", "train", "publish")


def ratios(runs: Sequence[Run], slow: dict[str, Any], quick: dict[str, Any]) -> list[float | None]:
    """Return seconds of the slow kind over the quick kind, by seed; None if the slow run missed the target."""

    def by_seed(kind: dict[str, Any]) -> dict[int, float | None]:
        return {run["seed"]: run["seconds"] for run in runs if kind.items() <= run.items()}

    above, below = by_seed(slow), by_seed(quick)
    ratios_by_seed: list[float | None] = []
    for seed, seconds in sorted(below.items()):
        if seconds and seed in above:
            over = above[seed]
            ratios_by_seed.append(over / seconds if over else None)
    return ratios_by_seed


def figures(real: Sequence[Run], simulated: Sequence[Run]) -> dict[str, Any]:
    """Return the figures of the runs; null without runs."""
    by_name: dict[str, Any] = {
        "async_to_sync": _median(ratios(real, {"mode": "synchronous"}, {"mode": "asynchronous"})),
    }
    for name in MACHINES:
        kind = {"machine": name, "objective": "decoupled"}
        by_name[f"async_to_sync_{name}"] = _median(ratios(simulated, {**kind, "bound": 0}, {**kind, "bound": 1}))
        ahead = {**kind, "bound": 1}
        by_name[f"learner_share_{name}"] = _rounded([run for run in simulated if ahead.items() <= run.items()])
    by_name["learner_share"] = _rounded([run for run in real if run["mode"] == "asynchronous"])
    return by_name | {"published": PUBLISHED, "seeds": len({run["seed"] for run in (*real, *simulated)})}


def _median(values: Sequence[float | None]) -> float | None:
    middle = median_interval(values)[0] if values else math.inf
    return round(middle, 3) if math.isfinite(middle) else None


def learner_shares(runs: Sequence[Run]) -> dict[str, float]:
    """Return each activity's median share of the learner's time; empty if no run recorded it.

    `decode` is the CPU time of the thread that reads and decodes in parallel.
    """
    recorded = [(run, total) for run in runs if (total := sum(run.get("learner_s", {}).values()))]
    if not recorded:
        return {}
    shares = {
        activity: statistics.median(run["learner_s"].get(activity, 0.0) / total for run, total in recorded)
        for activity in ACTIVITIES
    }
    decoded = [run["reader_cpu_s"] / total for run, total in recorded if "reader_cpu_s" in run]
    return shares | ({"decode": statistics.median(decoded)} if decoded else {})


def _rounded(runs: Sequence[Run]) -> dict[str, float]:
    return {activity: round(share, 4) for activity, share in learner_shares(runs).items()}


def page(about: str, real: Sequence[Run], simulated: Sequence[Run]) -> str:
    """Return docs/measured/async.md; `about` is the docstring of `bench/async.py`."""
    paragraphs = about.split("\n\n")
    seeds = len({run["seed"] for run in (*real, *simulated)})
    lines = [
        "# Asynchronous against synchronous",
        "",
        f"`bench/async.py` on {machine([*real, *simulated])}. Figures are medians over seeds, with "
        f"{describe_coverage(seeds)}. Ratios compare runs of the same seed. The published ratio to beat is {PUBLISHED} "
        "(AReaL, 1.5 billion parameters on many GPUs).",
    ]
    if real:
        lines += ["", "## The real stack on 2 cores", "", paragraphs[2].strip(), "", *_real(real)]
    if simulated:
        lines += ["", "## Simulated from stage times", "", paragraphs[3].strip(), "", *_stages()]
        for name, kind in MACHINES.items():
            machine_runs = [run for run in simulated if run["machine"] == name]
            if machine_runs:
                lines += ["", f"### {kind.title}", "", *_simulated(machine_runs)]
    return "\n".join(lines)


def _real(runs: Sequence[Run]) -> list[str]:
    rows = []
    for mode in ("synchronous", "asynchronous"):
        matching = [run for run in runs if run["mode"] == mode]
        if matching:
            reached = [run for run in matching if run["seconds"] is not None]
            cells = [
                format_interval([run["seconds"] for run in matching], 1),
                format_interval([run["versions"] for run in reached]),
                format_interval([run["trajectories"] for run in reached]),
                format_interval([run["staleness_max"] for run in reached]),
                format_interval([sum(run["cpu_s"].values()) / run["seconds"] for run in reached], 2),
            ]
            rows.append(f"| {mode} | {' | '.join(cells)} |")
    ratio = format_interval(ratios(runs, {"mode": "synchronous"}, {"mode": "asynchronous"}), 2)
    return [
        "| mode | seconds to target | versions | attempts | staleness at most | cores used |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        f"Synchronous over asynchronous: {ratio}.",
        "",
        *_shares([run for run in runs if run.get("cpu_s")]),
        *_learner({mode: [run for run in runs if run["mode"] == mode] for mode in ("synchronous", "asynchronous")}),
    ]


def _shares(runs: Sequence[Run]) -> list[str]:
    """Return the table of CPU time per step by process."""
    names = sorted({name for run in runs for name in run["cpu_s"]})
    each = {
        name: statistics.median(run["cpu_s"].get(name, 0.0) / run["steps"] * 1000 for run in runs) for name in names
    }
    total = sum(each.values())
    rows = [
        f"| {name} | {ms:.2f} | {ms / total:.0%} |"
        for name, ms in sorted(each.items(), key=lambda item: -item[1])
        if ms / total >= 0.005
    ]
    return [
        f"CPU of all processes together: {total:.1f} ms a step.",
        "",
        "| process | CPU ms a step | share |",
        "|---|---|---|",
        *rows,
    ]


def _learner(kinds: dict[str, list[Run]]) -> list[str]:
    """Return the table of the learner's time by activity, one row for each kind of runs."""
    shares = {kind: by_activity for kind, runs in kinds.items() if (by_activity := learner_shares(runs))}
    if not shares:
        return []
    rows = []
    for kind, by_activity in shares.items():
        cells = [f"{by_activity[name]:.1%}" if name in by_activity else "" for name in (*ACTIVITIES, "decode")]
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    return [
        "",
        "The learner's time by activity:",
        "",
        "| | waiting for attempts | waiting for reading | taking in | training | publishing | decoding, beside it |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]


def _stages() -> list[str]:
    known = json.loads(FILE.read_text())
    flat = {**known["stages"], **{f"{name} (a step)": s for name, s in known["stages"]["plumbing"].items()}}
    rows = [f"| {name} | {seconds * 1000:.3f} |" for name, seconds in flat.items() if name != "plumbing"]
    return [f"Stage times at commit {known['commit']}:", "", "| stage | ms |", "|---|---|", *rows]


def _simulated(runs: Sequence[Run]) -> list[str]:
    lines = [
        "| bound | objective | seconds to target | over bound 0 | attempts | staleness mean | stale, dropped "
        "| generating | training | cores used |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for objective in OBJECTIVES:
        for bound in BOUNDS:
            kind = {"objective": objective, "bound": bound}
            matching = [run for run in runs if kind.items() <= run.items()]
            if matching:
                ratio = ratios(runs, {"objective": objective, "bound": 0}, kind)
                cells = [
                    "none" if bound is None else str(bound),
                    objective,
                    format_interval([run["seconds"] for run in matching], 1),
                    format_interval(ratio, 2),
                    format_interval([run["samples"] for run in matching]),
                    *(
                        f"{statistics.median(run[name] for run in matching):{form}}"
                        for name, form in (
                            ("staleness_mean", ".2f"),
                            ("stale_dropped", ".0f"),
                            ("generating_share", ".0%"),
                            ("training_share", ".0%"),
                            ("cores_used", ".2f"),
                        )
                    ),
                ]
                lines.append(f"| {' | '.join(cells)} |")
    decoupled = [run for run in runs if run["objective"] == "decoupled"]
    return lines + _learner({f"bound {k}": [run for run in decoupled if run["bound"] == k] for k in BOUNDS})
