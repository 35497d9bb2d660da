"""Measure the console's pages over generated trajectories: the time of each endpoint that a page reads.

Run it as `.venv/bin/python bench/console.py [--quick] [--steps N]`. It starts its own store on a free port, with data
in a temporary folder, fills the product's tables as `bench/store.py` does, and calls each endpoint, for the range that
a page opens with and for 30 days. No answer comes from the console's memory. `first` is the first call of a console
that has just started; the others are repeated.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from store import quantile
from store_tables.load import DESIGNS, fill
from store_tables.rollups import compute_rollups
from store_tables.source import Source

from stepstream.config import Settings, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.services.console.api import ENDPOINTS
from stepstream.services.console.decision_cache import DecisionCache
from stepstream.services.console.endpoints import Call, Services
from stepstream.services.console.event_log import EventLog
from stepstream.services.console.store import Row, Store
from stepstream.services.console.users import LOCAL

STEPS, QUICK_STEPS = 10_000_000, 300_000
DAYS = 30
RUNS, QUICK_RUNS = 10, 3
PAGES = ("overview", "curves", "trajectories", "review", "rewards", "tools", "people", "scope")
"""Paths of the endpoints that read the tables of trajectories."""
RANGED = ("overview", "curves", "trajectories", "rewards", "tools", "scope")


class UncachedStore(Store):
    """The store without answers from memory."""

    def query(self, sql: str, parameters: Any = None, *, fresh_s: float = 0.0) -> list[Row]:
        """Ask the store."""
        return super().query(sql, parameters, fresh_s=0.0)


def time_ms(ask: Callable[[], object]) -> float:
    """Return the milliseconds of one call."""
    began = time.perf_counter()
    ask()
    return (time.perf_counter() - began) * 1000


def measure(settings: Settings, runs: int) -> dict[str, dict[str, int]]:
    """Print and return the first, median and p95 time of each page in milliseconds."""
    store = UncachedStore(settings)
    services = Services(settings, store, EventLog(settings), DecisionCache(settings))
    readers = {endpoint.path.removeprefix("/api/"): endpoint for endpoint in ENDPOINTS if endpoint.read is not None}
    figures = {}
    print("| page | range | first ms | p50 ms | p95 ms |\n|---|---|---|---|---|")
    for since in ("", "30d"):
        for page in RANGED if since else PAGES:
            read = cast(Callable[[Call], object], readers[page].read)
            call = Call(LOCAL, services, {"since": since} if since else {})
            first = time_ms(lambda read=read, call=call: read(call))  # type: ignore[misc]
            times = [time_ms(lambda read=read, call=call: read(call)) for _ in range(runs)]  # type: ignore[misc]
            row = {"first": round(first), "p50": round(quantile(times, 0.5)), "p95": round(quantile(times, 0.95))}
            print(f"| {page} | {since or 'as opened'} | {row['first']} | {row['p50']} | {row['p95']} |")
            figures[f"{page} {since}".strip()] = row
    store.close()
    return figures


def main() -> None:
    """Print a table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS:,} steps, fewer runs")
    parser.add_argument("--steps", type=int, help=f"number of steps (default {STEPS:,})")
    given = parser.parse_args()
    source = Source.of(given.steps or (QUICK_STEPS if given.quick else STEPS), DAYS)
    with tempfile.TemporaryDirectory() as folder, Stack(isolated(load({}), Path(folder)), ["store"]) as stack:
        migrate(stack.settings)
        with closing(connect(stack.settings, database=stack.settings.clickhouse.database)) as client:
            fill(client, DESIGNS["stepstream"], source)
            compute_rollups(client)
            [(steps, trajectories)] = client.query("SELECT sum(steps), count() FROM trajectories").result_rows
        print(f"{steps:,} steps of {trajectories:,} trajectories over {DAYS} days\n")
        pages = measure(stack.settings, QUICK_RUNS if given.quick else RUNS)
    slowest = max(row["first"] for row in pages.values())
    print(json.dumps({"console": {"steps": steps, "first_view_ms": slowest, "pages": pages}}))


if __name__ == "__main__":
    main()
