"""Measure how long `erase` takes to find persons' records on the log.

Run it as `.venv/bin/python bench/erase.py [--quick]`. It starts its own broker and registry on free ports, with data in
a temporary folder. The log has steps, governed steps and feedback of about 1.5 kB and 0.3 kB, sealed under the key of
one of 1,000 persons; one record of feedback in ten names nobody. The search runs for one person and for 100 together:
without an index, which the search then builds, with a complete one, and with one that lacks the newest 1 % of the log.
CPU seconds of the searching process, and of the store for its queries, are given beside the time, since other work on
the machine adds to the time. The figures are medians of the runs.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
from clickhouse_connect.driver.client import Client
from confluent_kafka import Producer
from streams.traffic import governed, trajectory

from stepstream.config import Settings, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.erasure.find_records import Search, find_records
from stepstream.jobs.erasure.findings import Findings, Person
from stepstream.jobs.erasure.index_table import PersonIndexTable, read_bases
from stepstream.jobs.erasure.read_log import INDEXED, Log
from stepstream.topics.catalogue import FEEDBACK, GOVERNED_FEEDBACK, GOVERNED_STEPS, STEPS
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec

TRAJECTORIES, QUICK_TRAJECTORIES = 100_000, 4_000
DISTINCT = 2_000
"""Trajectories that are encoded; the log repeats them."""
PERSONS = 1_000
MANY = 100
RUNS = 3


def write_log(settings: Settings, trajectories: int) -> tuple[int, int]:
    """Add to the log; return the number of records and bytes."""
    codec, rng = Codec(settings), random.Random(0)
    encoded: list[list[tuple[str, bytes, bytes]]] = []
    for number in range(min(DISTINCT, trajectories)):
        [step, *_], feedback = trajectory(f"t-{number}", rng, steps_of_one=1)
        sealed = {"seal_key": f"key-{number % PERSONS}", "sealed": bytes(200), "messages": []}
        events = [(STEPS, step | sealed), (GOVERNED_STEPS, governed(step) | sealed)]
        owner = {"comment": "of nobody"} if number % 10 == 0 else {"seal_key": sealed["seal_key"], "sealed": bytes(50)}
        events += [(FEEDBACK, feedback | owner), (GOVERNED_FEEDBACK, governed(feedback) | owner)]
        key = f"t-{number}".encode()
        encoded.append([(topic, key, codec.encode(topic, event)) for topic, event in events])
    producer = Producer(client_config(settings.kafka) | {"queue.buffering.max.messages": 1_000_000})
    records = size = 0
    for number in range(trajectories):
        for topic, key, value in encoded[number % len(encoded)]:
            producer.produce(topic, value, key=key)
            records, size = records + 1, size + len(value)
        if number % 5_000 == 0:
            producer.flush()
    producer.flush()
    return records, size


@contextmanager
def cpu_of(*processes: psutil.Process) -> Iterator[list[float]]:
    """Append the CPU seconds that processes use inside."""
    used: list[float] = []
    before = [process.cpu_times() for process in processes]
    yield used
    for process, earlier in zip(processes, before, strict=True):
        now = process.cpu_times()
        used.append(now.user + now.system - earlier.user - earlier.system)


def search(settings: Settings, client: Client, store: psutil.Process, persons: int) -> tuple[float, float, int]:
    """Search for some persons; return seconds, CPU seconds with the store's, and the number of their sealed records."""
    keys = {f"key-{number}" for number in range(PERSONS)}
    searches = [
        Search(Person("default", f"person-{number}"), Findings({f"key-{number}"}), keys - {f"key-{number}"})
        for number in range(persons)
    ]
    began = time.perf_counter()
    with cpu_of(psutil.Process(), store) as used, closing(Log(settings)) as log:
        index = PersonIndexTable(client, read_bases(settings, INDEXED, digest))
        find_records(log, index, digest, searches, lambda _: None)
    return time.perf_counter() - began, sum(used), sum(one.found.sealed for one in searches)


def digest(tenant: str, user: str) -> str:
    """Return a digest of a person; it costs less than the keyed one, of which each search computes few."""
    return f"{tenant}/{user}"


def measure(settings: Settings, store: psutil.Process, trajectories: int, runs: int) -> dict[str, float]:
    """Print a row for each kind of search; return the figures."""
    migrate(settings)
    records, size = write_log(settings, trajectories)
    print(f"{records:,} records, {size / 1e6:,.0f} MB\n")
    print("| persons | index | s | CPU s | CPU s a million records | found |\n|---|---|---|---|---|---|")
    figures: dict[str, float] = {"records": records, "mb": round(size / 1e6), "runs": runs}
    with closing(connect(settings, database=settings.clickhouse.database)) as client:
        for persons in (1, MANY):
            for state in ("none", "complete", "lacks_1_percent"):
                measured = []
                for _ in range(runs):
                    if state == "none":
                        client.command("TRUNCATE TABLE person_index")
                    if state == "lacks_1_percent":
                        records += write_log(settings, trajectories // 100)[0]
                    measured.append(search(settings, client, store, persons))
                seconds, cpu_s = (statistics.median(run[at] for run in measured) for at in (0, 1))
                million = cpu_s / records * 1e6
                row = (f"{seconds:.2f}", f"{cpu_s:.2f}", f"{million:.2f}", f"{measured[-1][2]:,}")
                print(f"| {persons} | {state} | {' | '.join(row)} |", flush=True)
                figures |= {
                    f"cpu_s_per_million_{persons}_{state}": round(million, 2),
                    f"s_{persons}_{state}": round(seconds, 2),
                }
        [(stored,)] = client.query(
            "SELECT sum(data_compressed_bytes) FROM system.parts WHERE table = 'person_index' AND active"
        ).result_rows
    print(f"\nThe index takes {stored / records:.1f} bytes a record; here {DISTINCT:,} trajectories repeat.")
    return figures


def main() -> None:
    """Print a table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller log and one run")
    quick = parser.parse_args().quick
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(isolated(load({}), Path(folder)), ["broker", "registry", "store"]) as stack,
    ):
        store = psutil.Process(stack.pid("store"))
        trajectories, runs = (QUICK_TRAJECTORIES, 1) if quick else (TRAJECTORIES, RUNS)
        figures = measure(stack.settings, store, trajectories, runs)
    print(json.dumps({"erase": figures}))


if __name__ == "__main__":
    main()
