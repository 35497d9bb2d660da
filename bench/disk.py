"""Measure the disk of a step: bytes in each topic and in each table of ClickHouse.

Run it as `.venv/bin/python bench/disk.py [--quick]`. It starts its own stack on free ports, with data in a temporary
folder, and sends the steps of bench/stream.py: 1.5 kB each, four a trajectory, with tokens and logprobs, which do not
compress. Tables are merged before they are measured.
"""

import argparse
import json
import re
import tempfile
from collections import Counter
from pathlib import Path

from clickhouse_connect.driver.client import Client
from streams.traffic import STEPS_OF_ONE
from streams.workers import Bench, wait_for

from stepstream.config import load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import connect

JOBS = ("govern", "label", "measure", "store-writer")
SMALLEST = 1.0
"""Bytes a step below which the table leaves a topic or table out."""


def topic_bytes(data: Path) -> Counter[str]:
    """Return the bytes of the segments of each topic."""
    sizes: Counter[str] = Counter()
    for segment in (data / "kafka").rglob("*.log"):
        if topic := re.fullmatch(r"(.+)-\d+", segment.parent.name):
            sizes[topic[1]] += segment.stat().st_size
    return sizes


def table_bytes(client: Client, database: str) -> Counter[str]:
    """Merge the tables of a database; return the bytes of their parts."""
    tables = client.query(
        "SELECT name FROM system.tables WHERE database = {database:String} AND engine LIKE '%MergeTree'",
        {"database": database},
    )
    for (table,) in tables.result_rows:
        client.command(f"OPTIMIZE TABLE {database}.`{table}` FINAL")
    parts = client.query(
        "SELECT table, sum(bytes_on_disk) FROM system.parts WHERE active AND database = {database:String} "
        "GROUP BY table",
        {"database": database},
    )
    return Counter({table: int(size) for table, size in parts.result_rows})


def stored(client: Client, table: str) -> int:
    """Return the number of trajectories' rows in a table."""
    return int(client.command(f"SELECT count() FROM {table} FINAL"))  # type: ignore[arg-type]


def measure(folder: Path, quick: bool) -> tuple[int, int, Counter[str], Counter[str]]:
    """Return steps, their mean record's size, and the bytes of topics and tables."""
    with Stack(isolated(load({}), folder), ["broker", "registry", "store", *JOBS]) as stack:
        settings = stack.settings
        bench = Bench(stack, folder, quick)
        size = bench.fill()
        steps = STEPS_OF_ONE * bench.trajectories
        client = connect(settings, database=settings.clickhouse.database)
        wait_for(lambda: stored(client, "steps") >= steps and stored(client, "trajectories") >= bench.trajectories)
        tables = table_bytes(client, settings.clickhouse.database)
        client.close()
        topics = topic_bytes(settings.paths.data)
    return steps, size, topics, tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps, under a minute")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepstream-bench-") as name:
        steps, size, topics, tables = measure(Path(name), arguments.quick)
    print(
        f"\n{steps:,} steps of {size:,} bytes, {STEPS_OF_ONE} a trajectory\n\n| stored in | bytes a step |\n|---|---|"
    )
    for kind, sizes in (("topic", topics), ("table", tables)):
        for part, amount in sizes.most_common():
            if amount / steps >= SMALLEST:
                print(f"| {kind} {part} | {amount / steps:,.0f} |")
    totals = {"kafka_bytes_a_step": topics.total() / steps, "clickhouse_bytes_a_step": tables.total() / steps}
    print(json.dumps({"step_bytes": size} | {key: round(value, 1) for key, value in totals.items()}))


if __name__ == "__main__":
    main()
