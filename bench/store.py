"""Measure loading, size and dashboards of the store beside Langfuse's and TensorZero's designs of tables.

Run it as `.venv/bin/python bench/store.py [--quick] [--steps N] [--folder FOLDER]`. It starts its own store on a free
port, with data in a temporary folder, and fills the product's tables and those in the shape of the peers
(`store_tables/*.sql`) with the same generated trajectories in the same engine. Then it asks each question of
`store_tables/questions.py` of each design, reads each view of the product over 7 and all days, and erases a hundred
persons. A query's time is that of the client over HTTP.

A hundred million steps take over an hour to load. With `--folder`, the data stay in that folder, and a later run asks
the same tables, after it has applied the migrations that are new since; its figures of loading are those of the first.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from store_tables.fleet import fill_fleet
from store_tables.load import DESIGNS, create, fill, generate, merge_past_weeks, stored_bytes
from store_tables.questions import QUESTIONS
from store_tables.rollups import (
    FILLED,
    compute_rollups,
    store_cohorts,
    wait_for_merges,
    wait_until_stored_rows_count,
)
from store_tables.source import ROWS, Source

from stepstream.config import load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse import hidden_rows
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.clickhouse.materialized_views import materialized_views
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rollup_refresh import REFRESHED, refresh
from stepstream.jobs.clickhouse.views import views
from stepstream.jobs.erasure.delete_from_tables import Target, count_rows, delete_rows, trajectories_of
from stepstream.jobs.erasure.findings import Person

STEPS, QUICK_STEPS = 10_000_000, 1_000_000
DAYS, QUICK_DAYS = 90, 10
RUNS, QUICK_RUNS = 20, 5
LEAST_RUNS, BUDGET_MS = 3, 20_000
"""After this time, a query is not repeated more than that."""
LIVE_DAYS = 7
TARGET_MS = 500
PERSONS = 100
START = {"STEPSTREAM_STACK_START_DEADLINE_S": "3600"}
"""New migrations may rewrite a hundred million rows that an earlier run loaded."""
CACHED = {"pass_rates", "tool_health"}
"""Views of shared/ANALYTICS.md whose answers a dashboard caches: pass^k over all tasks, and quantiles of tools."""
SHOWN = {"task_outcomes": "ORDER BY successes / attempts, attempts DESC LIMIT 100"}
"""Rows that a dashboard shows of a view with a row for each task, as the panel of the Grafana dashboard asks for them.

All of its rows, two million of the largest tenant at 100 million steps, are an export: their time is printed apart.
"""
Figures = dict[str, Any]


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that at least a share of the values do not exceed."""
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]


def times_ms(ask: Callable[[], object], runs: int) -> list[float]:
    """Return the milliseconds of each run, after one that is not counted; fewer runs of a slow query."""
    ask()
    found: list[float] = []
    while len(found) < runs and (len(found) < LEAST_RUNS or sum(found) < BUDGET_MS):
        began = time.perf_counter()
        ask()
        found.append((time.perf_counter() - began) * 1000)
    return found


def load_designs(client: Client, source: Source) -> Figures:
    """Fill all tables; print and return rates and sizes."""
    began = time.perf_counter()
    generate(client, source)
    generated_s = time.perf_counter() - began
    seconds: dict[str, float] = {}
    for design in DESIGNS.values():
        create(client, design)
        began = time.perf_counter()
        fill(client, design, source)
        if not design.schema:
            merge_past_weeks(client)
        seconds[design.name] = time.perf_counter() - began
    client.command(f"DROP TABLE {ROWS} SYNC")
    fill_fleet(client, source)
    refreshes, rollups_s = compute_rollups(client)
    cohorts, cohorts_s = store_cohorts(client)
    merges_s = wait_for_merges(client)
    [(steps,)] = client.query("SELECT count() FROM steps").result_rows
    figures: Figures = {
        "rows": steps,
        "days": source.days,
        "rollups_s": round(rollups_s, 1),
        "cohorts_s": round(cohorts_s, 1),
    }
    print("| design | steps | load s | steps a second | bytes a step |\n|---|---|---|---|---|")
    for name, design in DESIGNS.items():
        rate, size = steps / seconds[name], stored_bytes(client, design) / steps
        print(f"| {name} | {steps:,} | {seconds[name]:.1f} | {rate:,.0f} | {size:.1f} |")
        figures |= {f"load_steps_per_s_{name}": round(rate), f"bytes_a_step_{name}": round(size, 1)}
    print(
        f"\nThe rows are generated in {generated_s:.1f} s. All rollups in {refreshes} refreshes: {rollups_s:.1f} s. "
        f"The rows of {cohorts:,} cohorts, of all views, are stored in {cohorts_s:.1f} s. "
        f"Merges end {merges_s:.1f} s later.",
        flush=True,
    )
    return figures


def parameters(client: Client, source: Source) -> dict[str, Any]:
    """Return the parameters of the questions."""
    first, count = source.chunks()[-1]
    query = f"SELECT trajectory_id, tenant, opened_at FROM ({source.generated(first + count // 2, 1)})"
    [(trajectory, tenant, begin)] = client.query(query).result_rows
    return {"until": source.until, "trajectory": trajectory, "tenant": tenant, "begin": begin}


def ask_designs(client: Client, source: Source, runs: int) -> Figures:
    """Ask all questions of all designs; print and return the figures."""
    names, given = list(DESIGNS), parameters(client, source)
    print(f"\n| question | {' | '.join(f'{name} p50 / p95 ms' for name in names)} |\n|---|{'---|' * len(names)}")
    medians: dict[str, dict[str, float]] = {}
    live: list[float] = []
    for question in QUESTIONS:
        cells, medians[question.name] = [], {}
        for name in names:
            if (query := question.by_design.get(name)) is None:
                cells.append("–")
                continue
            ask = partial(client.query, query, given) if isinstance(query, str) else partial(query, client, given)
            found = times_ms(ask, runs)
            medians[question.name][name] = statistics.median(found)
            cells.append(f"{medians[question.name][name]:.1f} / {quantile(found, 0.95):.1f}")
            if question.live and name == names[0]:
                live.append(quantile(found, 0.95))
        print(f"| {question.name} | {' | '.join(cells)} |", flush=True)
    figures: Figures = {"p95_ms_live": round(max(live), 1)}
    for peer in names[1:]:
        ratios = {name: by[names[0]] / by[peer] for name, by in medians.items() if peer in by}
        figures[f"median_ratio_to_{peer}"] = round(statistics.median(ratios.values()), 3)
        figures[f"slower_than_{peer}"] = sorted(name for name, ratio in ratios.items() if ratio > 1)
    return figures


def view_times(client: Client, source: Source, runs: int) -> Iterator[tuple[str, int, list[float]]]:
    """Yield name, days and times of each view over the last days, of one tenant where the view tells tenants apart.

    Of those in `CACHED`, the times of cached answers. A view that the store refuses has no times.
    """
    tenants = "SELECT tenant FROM trajectory_hours FINAL GROUP BY tenant ORDER BY sum(trajectories) DESC LIMIT 1"
    [(largest,)] = client.query(tenants).result_rows
    for view in views().values():
        if unfilled := set(view.reads) - FILLED:
            print(f"{view.name} is not measured: {', '.join(sorted(unfilled))} are empty here", file=sys.stderr)
            continue
        for days in (LIVE_DAYS, source.days):
            given = {"since": source.until - timedelta(days=days), "until": source.until, "tenant": largest}
            query = f"SELECT * FROM {view.name}(since = {{since:DateTime}}, until = {{until:DateTime}})"
            if "tenant" in view.grain:
                query += " WHERE tenant = {tenant:String}"
            queries = {view.name: f"{query} {SHOWN.get(view.name, '')}"}
            if view.name in SHOWN:
                queries[f"{view.name}, all rows"] = query
            if view.name in CACHED:
                queries[view.name] += "SETTINGS use_query_cache = 1, query_cache_ttl = 600"
            for name, text in queries.items():
                try:
                    found = times_ms(partial(client.query, text, given), runs)
                except ClickHouseError as error:
                    print(f"{name} over {days} days: {str(error)[:300]}", file=sys.stderr)
                    found = []
                yield name, days, found


def ask_views(client: Client, source: Source, runs: int) -> Figures:
    """Read all views; print and return the figures."""
    print("\n| view | days | p50 ms | p95 ms |\n|---|---|---|---|")
    slowest: dict[str, float] = {}
    refused = set()
    for name, days, found in view_times(client, source, runs):
        if not found:
            refused.add(name)
            continue
        p95 = quantile(found, 0.95)
        if name in views():
            slowest[name] = max(slowest.get(name, 0), p95)
        print(f"| {name} | {days} | {statistics.median(found):.1f} | {p95:.1f} |", flush=True)
    above = {name: round(p95) for name, p95 in slowest.items() if p95 > TARGET_MS}
    return {
        "p95_ms_dashboard": round(max(slowest.values()), 1),
        "views_above_500_ms": above,
        "views_refused": sorted(refused),
    }


class Uncounted:
    """`RowCounts` without a file."""

    def plan_rows(self, step: str, table: str, present: int) -> None:
        """Do nothing."""

    def rows_removed(self, step: str, table: str) -> None:
        """Do nothing."""


def erase_persons(client: Client, store: psutil.Process) -> Figures:
    """Erase a hundred persons' rows as `stepstream erase` does; print and return the CPU time of the store.

    `erasure_cpu_s` is that of the pass: all that the command asks of the store until no query finds the rows and it
    ends. `erasure_rewrite_cpu_s` is that of the rewriting, once a night for all passes of a day, after which the rows'
    bytes are gone. The refreshes of the rollups, which follow, are dropped; one of them is counted apart.
    """
    for name in (*REFRESHED, *(view.name for view in materialized_views())):
        client.command(f"DROP VIEW {name}_refresh SYNC")
    found = client.query(f"SELECT DISTINCT tenant, user FROM trajectories ORDER BY user LIMIT {PERSONS}").result_rows
    persons = [Person(tenant, user) for tenant, user in found]
    clock = _Clock(store)
    trajectories = trajectories_of(client, persons)
    targets = [Target(person, trajectories[person], Uncounted()) for person in persons]
    rows = delete_rows(client, targets)
    left = count_rows(client, targets)
    pass_cpu_s, pass_s = clock.lap()
    parts = sum(hidden_rows.rewrite(client, lambda line: print(line, file=sys.stderr)).values())
    rewrite_cpu_s, rewrite_s = clock.lap()
    refresh(client)
    refresh_cpu_s, refresh_s = clock.lap()
    print(f"\nThe erasure of {len(found)} persons deletes {rows:,} rows (left: {left}).\n")
    print("| of the store | CPU s | s |\n|---|---|---|")
    print(f"| the pass: no query finds the rows | {pass_cpu_s:.1f} | {pass_s:.1f} |")
    print(f"| the nightly rewriting of {parts} parts | {rewrite_cpu_s:.1f} | {rewrite_s:.1f} |")
    print(f"| a refresh of the rollups' changed hours | {refresh_cpu_s:.1f} | {refresh_s:.1f} |", flush=True)
    return {
        "erasure_cpu_s": round(pass_cpu_s, 1),
        "erasure_s": round(pass_s, 1),
        "erasure_rewrite_cpu_s": round(rewrite_cpu_s, 1),
        "erasure_rewrite_s": round(rewrite_s, 1),
        "erasure_refresh_cpu_s": round(refresh_cpu_s, 1),
    }


class _Clock:
    """CPU seconds of a process, and seconds, by lap."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._cpu_s, self._s = self._read()

    def lap(self) -> tuple[float, float]:
        """Return CPU seconds and seconds since the last lap."""
        cpu_s, now_s = self._read()
        lap = cpu_s - self._cpu_s, now_s - self._s
        self._cpu_s, self._s = cpu_s, now_s
        return lap

    def _read(self) -> tuple[float, float]:
        return sum(self._process.cpu_times()[:2]), time.perf_counter()


def loaded(client: Client, source: Source, folder: Path) -> tuple[Source, Figures]:
    """Load the designs, or find them in the folder; return the source and the figures of loading."""
    record = folder / "loaded.json"
    if not record.exists():
        figures = load_designs(client, source)
        kept = {"trajectories": source.trajectories, "days": source.days, "until": source.until.isoformat()}
        record.write_text(json.dumps({**kept, "figures": figures}), "utf-8")
        return source, figures
    kept = json.loads(record.read_text("utf-8"))
    print(f"The tables were loaded before: {kept['figures']}", flush=True)
    compute_rollups(client)
    store_cohorts(client)
    wait_for_merges(client)
    return Source(kept["trajectories"], kept["days"], datetime.fromisoformat(kept["until"])), kept["figures"]


def main() -> None:
    """Print tables, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a million steps, fewer runs, too soon for stored rows of cohorts"
    )
    parser.add_argument("--steps", type=int, help=f"number of steps (default {STEPS:,})")
    parser.add_argument("--folder", type=Path, help="keep the data here, and use what an earlier run loaded")
    given = parser.parse_args()
    steps = given.steps or (QUICK_STEPS if given.quick else STEPS)
    runs = QUICK_RUNS if given.quick else RUNS
    source = Source.of(steps, QUICK_DAYS if given.quick else DAYS)
    with ExitStack() as context:
        folder = given.folder or Path(context.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        stack = context.enter_context(Stack(isolated(load(START), folder), ["store"]))
        migrate(stack.settings)
        store = psutil.Process(stack.pid("store"))
        with closing(connect(stack.settings, database=stack.settings.clickhouse.database)) as client:
            source, figures = loaded(client, source, folder)
            if not given.quick:
                wait_until_stored_rows_count(client)
            figures |= ask_designs(client, source, runs)
            figures |= ask_views(client, source, runs)
            figures |= erase_persons(client, store)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
