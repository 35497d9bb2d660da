"""Measure how long `erase` takes to find persons' records on the log.

Run it as `.venv/bin/python bench/erase.py [--quick]`. It starts its own broker and registry on free ports, with data in
a temporary folder. The log has steps, governed steps and feedback of about 1.5 kB and 0.3 kB, sealed under the key of
one of 1,000 persons; one record of feedback in ten names nobody. The search runs for one person and for 100 together.
CPU seconds of the searching process are given beside the time, since other work on the machine adds to the time.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from streams.traffic import governed, trajectory

from stepstream.config import Settings, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.erasure.find_records import Search, find_records
from stepstream.jobs.erasure.findings import Findings, Person
from stepstream.topics.catalogue import FEEDBACK, GOVERNED_FEEDBACK, GOVERNED_STEPS, STEPS
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec

TRAJECTORIES, QUICK_TRAJECTORIES = 100_000, 4_000
DISTINCT = 2_000
"""Trajectories that are encoded; the log repeats them."""
PERSONS = 1_000
MANY = 100


def write_log(settings: Settings, trajectories: int) -> tuple[int, int]:
    """Write the log; return its records and bytes."""
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


def search(settings: Settings, persons: int, say: Callable[[str], None]) -> tuple[float, float, int]:
    """Search for some persons; return seconds, CPU seconds and the number of their sealed records."""
    keys = {f"key-{number}" for number in range(PERSONS)}
    searches = [
        Search(Person("default", f"person-{number}"), Findings({f"key-{number}"}), keys - {f"key-{number}"})
        for number in range(persons)
    ]
    began, cpu = time.perf_counter(), time.process_time()
    find_records(settings, searches, say)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return seconds, cpu_s, sum(one.found.sealed for one in searches)


def main() -> None:
    """Print a table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller log")
    trajectories = QUICK_TRAJECTORIES if parser.parse_args().quick else TRAJECTORIES
    with (
        tempfile.TemporaryDirectory() as folder,
        Stack(isolated(load({}), Path(folder)), ["broker", "registry"]) as stack,
    ):
        settings = stack.settings
        records, size = write_log(settings, trajectories)
        print(f"{records:,} records, {size / 1e6:,.0f} MB\n\n| persons | s | CPU s | CPU s a million records | found |")
        print("|---|---|---|---|---|")
        figures: dict[str, float] = {"records": records, "mb": round(size / 1e6)}
        for persons in (1, MANY):
            seconds, cpu_s, found = search(settings, persons, lambda _: None)
            per_million = cpu_s / records * 1e6
            print(f"| {persons} | {seconds:.1f} | {cpu_s:.1f} | {per_million:.1f} | {found:,} |")
            figures |= {f"cpu_s_per_million_{persons}": round(per_million, 1), f"s_{persons}": round(seconds, 1)}
            figures[f"cpu_s_per_gb_{persons}"] = round(cpu_s / size * 1e9, 1)
    print(json.dumps({"erase": figures}))


if __name__ == "__main__":
    main()
