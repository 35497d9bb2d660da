"""How fast one worker of each stream job is, beside a plain confluent-kafka loop over the same records.

Run it as `.venv/bin/python bench/stream.py [--quick]`. It starts a broker, a registry and a store of its own on free
ports, with data in a temporary folder.

Rates. The loop consumes in batches, decodes each record from Avro, encodes it again, produces it and commits at the
end: no state, no checks, no flush in between, so it is the most that one Python process can do with these records.
Each job's rate is taken over the same records as the loop's, which runs right before and (unless --quick) right after
it, since machines are noisy: steps for govern and label (which have the feedback to read besides), labelled
trajectories for measure, rows of all topics for store. The first batch, with the start of the process, is left out of
both.

Latency. At 500 steps a second, from `produce` to the arrival of what follows: the governed step; the label, from the
feedback that ends its trajectory; the trajectory's statistics, from its label.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from stepstream.config import Settings, environment_of, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.ports import free_block
from stepstream.embedded.stack import Stack
from stepstream.topics import events
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.ids import derived_id, new_event_id, now_us, token_digest
from stepstream.topics.producer import EventProducer

STEPS_OF_ONE = 4
LOOP_TOPIC = "bench-loop"
PACE = 500.0
GROUP_SIZE = 8
PATIENCE_S = 120.0


def trajectory(name: str, rng: random.Random) -> tuple[list[events.Step], events.Feedback]:
    """Four steps of about 1.5 kB with 90 new prompt tokens and 110 response tokens each, and the outcome."""
    context: list[int] = []
    steps = []
    for index in range(STEPS_OF_ONE):
        prompt = [rng.randrange(50_000) for _ in range(90)]
        response = [rng.randrange(50_000) for _ in range(110)]
        call = events.new_tool_call(call_id=f"call_{index}", name="lookup", arguments='{"input": "order 4711"}')
        steps.append(
            events.new_step(
                event_id=new_event_id(),
                occurred_at_us=now_us(),
                producer="bench/1",
                consent="train",
                trajectory_id=name,
                step_index=index,
                task_id="task",
                group_id=f"{name.split('-')[0]}-{int(name.split('-')[1]) // GROUP_SIZE}",
                agent="bench",
                environment="bench",
                harness_version="h1",
                model="demo",
                fidelity="token",
                prompt_shared_messages=2 * index,
                prompt_shared_tokens=len(context),
                prompt_shared_digest=token_digest(context) if context else None,
                messages=[events.new_message(role="tool" if index else "user", content=TEXT[:120])],
                prompt_token_ids=prompt,
                response=events.new_message(role="assistant", content=TEXT[:80], tool_calls=[call]),
                response_token_ids=response,
                response_logprobs=[-rng.random() for _ in response],
                policy_spans=[events.new_policy_span(start=0, end=len(response), model="demo", version=7)],
                sampling=events.new_sampling(),
                finish_reason="tool_calls",
                duration_ms=40.0,
            )
        )
        context += prompt + response
    ending = events.new_feedback(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        producer="bench/1",
        consent="train",
        trajectory_id=name,
        name="outcome",
        value=float(rng.random() < 0.5),
        source="environment",
        end="terminated",
        last_step_index=STEPS_OF_ONE - 1,
    )
    return steps, ending


TEXT = "The order was sent on Monday; the parcel is at the sorting centre and should arrive within two days. " * 3


def governed(record: Any) -> Any:
    """As `govern` passes it on."""
    stamp = events.new_governance(source_event_id=record["event_id"], job="govern@1", trainable=True)
    return {**record, "event_id": derived_id("govern@1", record["event_id"]), "governed": stamp}


class Bench:
    """The stack under measurement and what to measure it with."""

    def __init__(self, stack: Stack, folder: Path, quick: bool) -> None:
        self.settings: Settings = stack.settings
        self.folder = folder
        self.trajectories = 1_200 if quick else 10_000
        self.quick = quick
        self.seconds = 2.0 if quick else 20.0
        self.codec = Codec(self.settings.schema_registry)
        self.producer = EventProducer(self.settings.kafka, self.codec, "bench/1", linger_ms=5)
        self.rng = random.Random(0)

    def fill(self) -> int:
        """Writes the trajectories to `steps` and `feedback`; returns the mean size of a step in bytes."""
        size = 0
        for number in range(self.trajectories):
            steps, ending = trajectory(f"fill-{number}", self.rng)
            for step in steps:
                value = self.codec.encode("steps", step)
                size += len(value)
                self.producer.send_encoded("steps", step["trajectory_id"], value, step)
            self.producer.send("feedback", ending["trajectory_id"], ending)
            if len(self.producer) > 20_000:
                self.producer.flush()
        self.producer.flush()
        return round(size / self.trajectories / STEPS_OF_ONE)

    def end(self, topic: str) -> int:
        """Records of a topic."""
        consumer = Consumer(client_config(self.settings.kafka) | {"group.id": "bench-end"})
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            return sum(consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions)
        finally:
            consumer.close()

    def loop_rate(self, topic: str) -> float:
        """Records per second of the plain loop over a topic, in a process of its own."""
        command = [sys.executable, __file__, "--loop", topic, "--records", str(self.end(topic))]
        out = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=True)
        return float(out.stdout.split()[-1])

    def environment(self, **more: str) -> dict[str, str]:
        """Variables for a child process."""
        return os.environ | environment_of(self.settings) | {"OMP_NUM_THREADS": "1"} | more

    @contextmanager
    def job(self, name: str) -> "Iterator[Job]":
        """One worker of a job, running."""
        port = free_block(1)
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"stepstream.jobs.{name}"],
                env=self.environment(STEPSTREAM_METRICS_PORT=str(port)),
                stderr=log,
            )
        try:
            yield Job(process, port)
        finally:
            process.terminate()
            process.wait()


class Job:
    """A running job as seen through its metrics."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process = psutil.Process(process.pid)
        self._url = f"http://127.0.0.1:{port}/metrics"

    def metric(self, name: str, topics: tuple[str, ...] = ()) -> float:
        """The sum of a metric over all labels, or over the topics given."""
        try:
            with urllib.request.urlopen(self._url, timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0.0
        found = [line for line in lines if line.startswith((name + " ", name + "{"))]
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in found if not topics or any(f'topic="{t}"' in line for t in topics)
        )

    def ready(self) -> None:
        """Waits until the job has its partitions."""
        wait_for(lambda: self.metric("stepstream_job_ready") == 1)

    def rate(self, topics: tuple[str, ...], total: int) -> float:
        """Records per second until `total` records of the topics were worked off."""
        seen = [(time.monotonic(), 0.0)]

        def done() -> bool:
            count = self.metric("stepstream_job_records_in_total", topics)
            if count > seen[-1][1]:
                seen.append((time.monotonic(), count))
            return count >= total

        wait_for(done, pause_s=0.05)
        (began, first), (ended, last) = seen[1], seen[-1]
        return (last - first) / (ended - began)

    def cost(self) -> tuple[float, float]:
        """CPU seconds and MB resident so far."""
        times = self.process.cpu_times()
        return times.user + times.system, self.process.memory_info().rss / 1e6


def wait_for(ask: Callable[[], bool], pause_s: float = 0.1) -> None:
    """Blocks until the answer is yes."""
    deadline = time.monotonic() + PATIENCE_S
    while not ask():
        if time.monotonic() > deadline:
            raise SystemExit("the bench waited too long; see the jobs' logs in its folder")
        time.sleep(pause_s)


def run_loop(topic: str, records: int) -> None:
    """The plain loop, as a process: prints its records per second."""
    settings = load()
    codec = Codec(settings.schema_registry)
    consumer = Consumer(
        client_config(settings.kafka)
        | {"group.id": new_event_id(), "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    producer = Producer(
        client_config(settings.kafka)
        | {"enable.idempotence": True, "linger.ms": 5, "compression.type": "lz4", "partitioner": "murmur2_random"}
    )
    consumer.subscribe([topic])
    done = 0
    began, first = 0.0, 0
    while done < records:
        for message in consumer.consume(500, 0.1):
            if message.error() is None:
                value = codec.encode(topic, codec.decode(topic, message.value()))
                while True:
                    try:
                        producer.produce(LOOP_TOPIC, value, message.key())
                        break
                    except BufferError:
                        producer.poll(0.1)
                done += 1
        producer.poll(0)
        if done and not began:
            began, first = time.monotonic(), done
    producer.flush()
    consumer.commit(asynchronous=False)
    print((done - first) / (time.monotonic() - began))
    consumer.close()


def event_id(value: bytes) -> str:
    """The first field of every record: after the header of five bytes, a string of 36 characters."""
    return value[6:42].decode()


def trajectory_id(value: bytes) -> str:
    """The third field of a label, after `event_id` and a time."""
    place = 42
    while value[place] & 0x80:
        place += 1
    length = value[place + 1] // 2  # a zigzag number, below 64 characters in one byte
    return value[place + 2 : place + 2 + length].decode()


class Follower:
    """Notes when records with the ids waited for arrive on a topic."""

    def __init__(self, bench: Bench, topic: str, identify: Callable[[bytes], str]) -> None:
        """`identify` reads an id from a record's bytes: decoding it all would make the follower what is measured."""
        self.arrived: dict[str, float] = {}
        self._bench, self._topic, self._identify = bench, topic, identify
        self._stop = threading.Event()
        self._assigned = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> "Follower":
        self._thread.start()
        self._assigned.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        consumer = Consumer(
            client_config(self._bench.settings.kafka)
            | {"group.id": new_event_id(), "auto.offset.reset": "latest", "fetch.wait.max.ms": 5}
        )
        consumer.subscribe([self._topic], on_assign=from_now(self._assigned.set))
        while not self._stop.is_set():
            for message in consumer.consume(50, 0.001):
                if message.error() is None:
                    self.arrived.setdefault(self._identify(message.value()), time.monotonic())
        consumer.close()


def from_now(then: Callable[[], object]) -> Callable[[Consumer, list[TopicPartition]], None]:
    """What makes a subscription begin at the records that come after it, exactly; calls `then` when it does."""

    def assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            partition.offset = consumer.get_watermark_offsets(partition, timeout=10)[1]
        consumer.assign(partitions)
        then()

    return assign


def paced(bench: Bench, name: str, send: Callable[[list[events.Step], events.Feedback], str]) -> dict[str, float]:
    """Sends trajectories at the pace; returns when what is waited for was sent, by the id that `send` gives."""
    sent = {}
    producer = bench.producer
    began = time.monotonic()
    for number in itertools.count():
        due = began + number * STEPS_OF_ONE / PACE
        if due - began > bench.seconds:
            break
        steps, ending = trajectory(f"{name}-{number}", bench.rng)
        while (left := due - time.monotonic()) > 0:
            producer.poll(min(left, 0.005))
        waited_for = send(steps, ending)
        sent[waited_for] = time.monotonic()
    producer.flush()
    return sent


def stats_key(value: bytes) -> str:
    """The key of a statistics record of one trajectory; of a cohort, something else."""
    place = 42
    while value[place] & 0x80:
        place += 1
    return trajectory_id(value[:42] + b"\x00" + value[place + 2 :])  # its scope comes between


def latency(bench: Bench, name: str, follower: Follower, send: Callable[..., str]) -> tuple[float, float]:
    """p50 and p99 in milliseconds; the first second, in which everything warms up, is left out."""
    with follower:
        sent = paced(bench, name, send)
        wait_for(lambda: follower.arrived.keys() >= sent.keys())
    start = min(sent.values()) + 1.0
    times = sorted((follower.arrived[i] - at) * 1000 for i, at in sent.items() if at >= start)
    return statistics.median(times), times[int(len(times) * 0.99)]


def measure_all(bench: Bench) -> dict[str, dict[str, float]]:
    """Rates of all jobs, with the loops before and after each."""
    results: dict[str, dict[str, float]] = {}
    total = STEPS_OF_ONE * bench.trajectories
    whole = bench.trajectories
    plan = [
        ("govern", "steps", total, {"governed-steps": total, "governed-feedback": whole}),
        ("label", "governed-steps", total, {"labeled-trajectories": whole}),
        ("measure", "labeled-trajectories", whole, {}),
    ]
    for name, topic, records, outputs in plan:
        before = bench.loop_rate(topic)
        with bench.job(name) as job:
            rate = job.rate((topic,), records)
            wait_for(lambda outputs=outputs: all(bench.end(name) >= count for name, count in outputs.items()))
            cpu, rss = job.cost()
        after = before if bench.quick else bench.loop_rate(topic)
        loop = (before + after) / 2
        results[name] = {"rate": rate, "loop": loop, "ratio": rate / loop, "cpu_s": cpu, "rss_mb": rss}
        told(name, results[name])
    everything = sum(bench.end(topic) for topic in ("governed-steps", "governed-feedback", "labeled-trajectories"))
    with bench.job("store") as job:
        rate = job.rate(("governed-steps", "governed-feedback", "labeled-trajectories"), everything)
        cpu, rss = job.cost()
    results["store"] = {"rate": rate, "cpu_s": cpu, "rss_mb": rss}
    told("store", results["store"])
    return results


def settled(job: Job) -> bool:
    """Whether the job has stopped taking records: what earlier measurements left is worked off."""
    before = job.metric("stepstream_job_records_in_total")
    time.sleep(1.0)
    return job.metric("stepstream_job_records_in_total") == before


def told(name: str, result: dict[str, float]) -> None:
    print(f"  {name}: " + ", ".join(f"{key} {value:.3g}" for key, value in result.items()), file=sys.stderr)


def measure_latency(bench: Bench) -> dict[str, tuple[float, float]]:
    """Latencies of the loop and the jobs at the pace."""
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
    loop = subprocess.Popen([sys.executable, __file__, "--forward"], env=bench.environment(), stdout=subprocess.PIPE)
    try:
        assert loop.stdout is not None
        loop.stdout.readline()
        follower = Follower(bench, LOOP_TOPIC, event_id)
        results["loop"] = latency(bench, "lat0", follower, looped_steps)
    finally:
        loop.terminate()
        loop.wait()
    with bench.job("govern") as job:
        job.ready()
        wait_for(lambda: settled(job))
        follower = Follower(bench, "governed-steps", event_id)
        results["govern"] = latency(bench, "lat1", follower, steps_only)
    with bench.job("label") as job:
        job.ready()
        wait_for(lambda: settled(job))
        follower = Follower(bench, "labeled-trajectories", trajectory_id)
        results["label"] = latency(bench, "lat2", follower, governed_all)
        with bench.job("measure") as measuring:
            measuring.ready()
            wait_for(lambda: settled(measuring))
            labels = Follower(bench, "labeled-trajectories", trajectory_id)
            stats = Follower(bench, "trajectory-stats", stats_key)
            with labels, stats:
                sent = paced(bench, "lat3", governed_all)
                wait_for(lambda: stats.arrived.keys() >= sent.keys() and labels.arrived.keys() >= sent.keys())
            # A label reaches this process and `measure` at about the same time; what is left is measure's share.
            times = sorted((stats.arrived[name] - labels.arrived[name]) * 1000 for name in sent)
            results["measure"] = statistics.median(times), times[int(len(times) * 0.99)]
    return results


def run_forward() -> None:
    """The plain loop for latency: each record at once."""
    settings = load()
    codec = Codec(settings.schema_registry)
    consumer = Consumer(
        client_config(settings.kafka)
        | {"group.id": new_event_id(), "auto.offset.reset": "latest", "fetch.wait.max.ms": 5}
    )
    producer = Producer(client_config(settings.kafka) | {"enable.idempotence": True, "linger.ms": 0})
    consumer.subscribe(["steps"], on_assign=from_now(lambda: print("ready", flush=True)))
    while True:
        for message in consumer.consume(500, 0.001):
            if message.error() is None:
                value = codec.encode("governed-steps", codec.decode("steps", message.value()))
                producer.produce(LOOP_TOPIC, value, message.key())
        producer.poll(0)


def print_table(size: int, rates: dict[str, dict[str, float]], latencies: dict[str, tuple[float, float]]) -> None:
    """What people read."""
    units = {"govern": "steps", "label": "steps", "measure": "trajectories", "store": "records"}
    print(f"\nsteps of {size} bytes, {STEPS_OF_ONE} a trajectory; latency at {PACE:g} steps/s, in ms\n")
    print("| job | per s | plain loop per s | ratio | RSS MB | p50 | p99 |\n|---|---|---|---|---|---|---|")
    for name, unit in units.items():
        r = rates[name]
        loop = f"{r['loop']:,.0f} | {r['ratio']:.2f}" if "loop" in r else "– | –"
        p50, p99 = (f"{value:.1f}" for value in latencies[name]) if name in latencies else ("–", "–")
        print(f"| {name} | {r['rate']:,.0f} {unit} | {loop} | {r['rss_mb']:.0f} | {p50} | {p99} |")
    p50, p99 = latencies["loop"]
    print(f"| plain loop | | | | | {p50:.1f} | {p99:.1f} |\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records, under a minute")
    parser.add_argument("--loop", help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--forward", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop:
        return run_loop(arguments.loop, arguments.records)
    if arguments.forward:
        return run_forward()
    with tempfile.TemporaryDirectory(prefix="stepstream-bench-") as name:
        folder = Path(name)
        with Stack(isolated(load({}), folder), ["broker", "registry", "store"]) as stack:
            admin = AdminClient(client_config(stack.settings.kafka))
            admin.create_topics([NewTopic(LOOP_TOPIC, 8, 1)])[LOOP_TOPIC].result()
            bench = Bench(stack, folder, arguments.quick)
            size = bench.fill()
            rates = measure_all(bench)
            latencies = measure_latency(bench)
    print_table(size, rates, latencies)
    figures: dict[str, float] = {"step_bytes": size}
    for job, result in rates.items():
        figures |= {f"{key}_{job}": round(value, 3) for key, value in result.items()}
    for job, (p50, p99) in latencies.items():
        figures |= {f"p50_ms_{job}": round(p50, 2), f"p99_ms_{job}": round(p99, 2)}
    print(json.dumps(figures))
    return None


if __name__ == "__main__":
    main()
