"""Measure the rate and latency of one worker of each stream job, against a plain confluent-kafka loop.

Run it as `.venv/bin/python bench/stream.py [--quick] [--only rates idle latency]`. It starts its own broker, registry
and store on free ports, with data in a temporary folder.

Rates. The loop consumes in batches, decodes each record from Avro, encodes it again, produces it and commits at the
end. It has no state, checks or flushes, so it is the maximum of one Python process. Each job processes the same records
as the loop, which runs right before and (unless --quick) right after it, since machines are noisy: steps and feedback
for govern and label, labelled trajectories for measure, rows of all topics for the sink (`store`). Both rates leave out
the first batch, which includes the start of the process. A job's rate is over all its records: a backlog's steps are
read before its feedback or after it, and those that come last make the labels.

The loop decodes and encodes every array, and the jobs pass encoded arrays on. So a ratio may exceed 1.

Rows. `ratio_store` compares the sink's rows with a plain loop that consumes the same records in batches, decodes them,
builds their rows and inserts these into the same tables; it commits nothing. `ratio_store_insert` compares them with a
loop that only inserts rows built before, without a broker.

Idle. `idle_cpu_share` is the CPU time of an idle worker per second, the largest of all jobs.

Latency. At 500 steps a second, from `produce` to the arrival of the result: the governed step; the label, from the
feedback that ends its trajectory; the trajectory's statistics, from its label, while `label` runs too. The first second
is a warm-up.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from streams import plain_loop
from streams.arrivals import (
    PACE,
    Follower,
    after_warm_up,
    event_id,
    latency,
    paced,
    percentiles,
    stats_key,
    trajectory_id,
)
from streams.insert_loop import insert_rate, plain_rate
from streams.plain_loop import LOOP_TOPIC
from streams.traffic import STEPS_OF_ONE, governed
from streams.workers import JOBS, Bench, is_idle, wait_for

from stepstream.config import load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.topics import events
from stepstream.topics.client import client_config
from stepstream.topics.ids import derived_id
from stepstream.topics.producer import EventProducer

PARTS = ("rates", "idle", "latency")


def has_all(bench: Bench, outputs: dict[str, int]) -> bool:
    """Return True if each topic has this many records."""
    return all(bench.count(topic) >= count for topic, count in outputs.items())


def measure_all(bench: Bench) -> dict[str, dict[str, float]]:
    """Measure the rates of all jobs, each with the loop before and after it."""
    results: dict[str, dict[str, float]] = {}
    total = STEPS_OF_ONE * bench.trajectories
    trajectories = bench.trajectories
    plan: list[tuple[str, tuple[str, ...], int, dict[str, int]]] = [
        (
            "govern",
            ("steps", "feedback"),
            total + trajectories,
            {"governed-steps": total, "governed-feedback": trajectories},
        ),
        (
            "label",
            ("governed-steps", "governed-feedback"),
            total + trajectories,
            {"labeled-trajectories": trajectories},
        ),
        ("measure", ("labeled-trajectories",), trajectories, {}),
    ]
    for name, topics, records, outputs in plan:
        before = bench.loop_rate(topics)
        with bench.job(name) as job:
            rate = job.rate(topics, records)
            wait_for(partial(has_all, bench, outputs))
            cpu, rss = job.cost()
        after = before if bench.quick else bench.loop_rate(topics)
        loop = (before + after) / 2
        results[name] = {"rate": rate, "loop": loop, "ratio": rate / loop, "cpu_s": cpu, "rss_mb": rss}
        print_rate(name, results[name])
    stored = ("governed-steps", "governed-feedback", "labeled-trajectories")
    everything = sum(bench.count(topic) for topic in stored)
    with bench.job("sink") as job:
        rate = job.rate(stored, everything)
        cpu, rss = job.cost()
    results["store"] = {"rate": rate, "cpu_s": cpu, "rss_mb": rss}
    inserted, count = insert_rate(bench.settings, bench.codec, stored)
    row_rate, loop = rate * count / everything, plain_rate(bench.settings, bench.codec, stored)
    results["store"] |= {"rows": row_rate, "loop_rows": loop, "ratio": row_rate / loop}
    results["store"] |= {"insert_rows": inserted, "ratio_insert": row_rate / inserted}
    print_rate("store", results["store"])
    return results


def measure_idle(bench: Bench) -> dict[str, float]:
    """Measure the share of one core that an idle worker of each job takes; all run together."""
    with ExitStack() as stack:
        jobs = {name: stack.enter_context(bench.job(name)) for name in JOBS}
        for job in jobs.values():
            job.wait_ready()
            wait_for(partial(is_idle, job))
        before = {name: job.cost()[0] for name, job in jobs.items()}
        began = time.monotonic()
        time.sleep(bench.idle_s)
        seconds = time.monotonic() - began
        return {name: (job.cost()[0] - before[name]) / seconds for name, job in jobs.items()}


def print_rate(name: str, result: dict[str, float]) -> None:
    print(f"  {name}: " + ", ".join(f"{key} {value:.3g}" for key, value in result.items()), file=sys.stderr)


def measure_latency(bench: Bench) -> dict[str, tuple[float, float]]:
    """Measure p50 and p99 of the loop and the jobs at the pace, in ms."""
    producer = EventProducer(bench.settings.kafka, bench.codec, "bench/1", linger_ms=0)
    bench.producer = producer

    def steps_only(steps: list[events.Step], _: events.Feedback) -> str:
        for step in steps:
            producer.send("steps", step["trajectory_id"], step)
        return derived_id("govern@1", steps[-1]["event_id"])

    def looped_steps(steps: list[events.Step], ending: events.Feedback) -> str:
        steps_only(steps, ending)
        return steps[-1]["event_id"]

    def governed_all(steps: list[events.Step], ending: events.Feedback) -> str:
        for step in steps:
            producer.send("governed-steps", step["trajectory_id"], governed(step))
        producer.send("governed-feedback", ending["trajectory_id"], governed(ending))
        return ending["trajectory_id"]

    results = {}
    forward = [sys.executable, plain_loop.__file__, "forward"]
    loop = subprocess.Popen(forward, env=bench.environment(), stdout=subprocess.PIPE)
    try:
        assert loop.stdout is not None
        loop.stdout.readline()
        follower = Follower(bench, LOOP_TOPIC, event_id)
        results["loop"] = latency(bench, "lat0", follower, looped_steps)
    finally:
        loop.terminate()
        loop.wait()
    with bench.job("govern") as job:
        job.wait_ready()
        wait_for(lambda: is_idle(job))
        follower = Follower(bench, "governed-steps", event_id)
        results["govern"] = latency(bench, "lat1", follower, steps_only)
    with bench.job("label") as job:
        job.wait_ready()
        wait_for(lambda: is_idle(job))
        follower = Follower(bench, "labeled-trajectories", trajectory_id)
        results["label"] = latency(bench, "lat2", follower, governed_all)
        with bench.job("measure") as measuring:
            measuring.wait_ready()
            wait_for(lambda: is_idle(measuring))
            labels = Follower(bench, "labeled-trajectories", trajectory_id)
            stats = Follower(bench, "trajectory-stats", stats_key)
            with labels, stats:
                sent = paced(bench, "lat3", governed_all)
                wait_for(lambda: stats.arrived.keys() >= sent.keys() and labels.arrived.keys() >= sent.keys())
            # A label reaches this process and `measure` at about the same time, so the difference is measure's latency.
            results["measure"] = percentiles(
                (stats.arrived[name] - labels.arrived[name]) * 1000 for name in after_warm_up(sent)
            )
    return results


def print_table(size: int, rates: dict[str, dict[str, float]], latencies: dict[str, tuple[float, float]]) -> None:
    """Print the table of what was measured."""
    units = {"govern": "records", "label": "records", "measure": "trajectories", "store": "records"}
    print(f"\nsteps of {size} bytes, {STEPS_OF_ONE} a trajectory; latency at {PACE:g} steps/s, in ms\n")
    print("| job | per s | plain loop per s | ratio | RSS MB | p50 | p99 |\n|---|---|---|---|---|---|---|")
    for name, unit in units.items():
        r = rates.get(name, {})
        rate, rss = (f"{r['rate']:,.0f} {unit}", f"{r['rss_mb']:.0f}") if r else ("–", "–")
        loop = f"{r['loop']:,.0f} | {r['ratio']:.2f}" if "loop" in r else "– | –"
        print(f"| {name} | {rate} | {loop} | {rss} | {latency_cells(latencies.get(name))} |")
    print(f"| plain loop | | | | | {latency_cells(latencies.get('loop'))} |\n")


def latency_cells(measured: tuple[float, float] | None) -> str:
    """Return the cells of p50 and p99; None: it was not measured."""
    return "– | –" if measured is None else "{:.1f} | {:.1f}".format(*measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records, about a minute")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure; all by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepstream-bench-") as name:
        folder = Path(name)
        with Stack(isolated(load({}), folder), ["broker", "registry", "store"]) as stack:
            admin = AdminClient(client_config(stack.settings.kafka))
            admin.create_topics([NewTopic(LOOP_TOPIC, 8, 1)])[LOOP_TOPIC].result()
            bench = Bench(stack, folder, arguments.quick)
            size = bench.fill()
            rates = measure_all(bench) if "rates" in arguments.only else {}
            idle = measure_idle(bench) if "idle" in arguments.only else {}
            latencies = measure_latency(bench) if "latency" in arguments.only else {}
    print_table(size, rates, latencies)
    figures: dict[str, float] = {"step_bytes": size}
    for job, result in rates.items():
        figures |= {f"{key}_{job}": round(value, 3) for key, value in result.items()}
    figures |= {f"idle_cpu_share_{job}": round(share, 4) for job, share in idle.items()}
    if idle:
        figures["idle_cpu_share"] = round(max(idle.values()), 4)
    for job, (p50, p99) in latencies.items():
        figures |= {f"p50_ms_{job}": round(p50, 2), f"p99_ms_{job}": round(p99, 2)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
