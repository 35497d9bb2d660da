"""Run the stack under measurement, and read one job worker's metrics."""

import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka import Consumer, KafkaError, TopicPartition

from stepstream.config import Settings, environment_of
from stepstream.embedded.ports import free_block
from stepstream.embedded.stack import Stack
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.producer import EventProducer
from streams import plain_loop
from streams.traffic import STEPS_OF_ONE, trajectory

TIMEOUT_S = 120.0
JOBS = ("govern", "label", "measure", "sink", "watch", "curate", "verify", "judge")
"""All jobs but `inspect`, which needs a language model; it has the runtime and fewer tables than `govern`."""


class Bench:
    """The stack under measurement, with its codec and producer."""

    def __init__(self, stack: Stack, folder: Path, quick: bool) -> None:
        self.settings: Settings = stack.settings
        self.folder = folder
        self.trajectories = 1_200 if quick else 10_000
        self.quick = quick
        self.seconds = 2.0 if quick else 20.0
        self.idle_s = 5.0 if quick else 60.0
        self.codec = Codec(self.settings)
        self.producer = EventProducer(self.settings.kafka, self.codec, "bench/1", linger_ms=5)
        self.rng = random.Random(0)

    def fill(self) -> int:
        """Write the trajectories to `steps` and `feedback`; return the mean size of a step in bytes."""
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

    def count(self, topic: str) -> int:
        """Return the number of records of a topic; its offsets also count the markers of transactions."""
        config = {"group.id": "bench-count", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer(client_config(self.settings.kafka) | config)
        try:
            unread = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in unread])
            records = 0
            while unread:
                for message in consumer.consume(5_000, 0.1):
                    fault = message.error()
                    records += fault is None
                    if fault is not None and fault.code() == KafkaError._PARTITION_EOF:
                        unread.discard(message.partition() or 0)
            return records
        finally:
            consumer.close()

    def loop_rate(self, topics: tuple[str, ...]) -> float:
        """Return the records per second of the plain loop over topics, one after the other."""
        records, seconds = 0, 0.0
        for topic in topics:
            count = self.count(topic)
            command = [sys.executable, plain_loop.__file__, "rate", topic, str(count)]
            out = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=True)
            records, seconds = records + count, seconds + count / float(out.stdout.split()[-1])
        return records / seconds

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a child process."""
        return os.environ | environment_of(self.settings) | {"OMP_NUM_THREADS": "1"} | more

    def _job_settings(self) -> dict[str, str]:
        """Return settings without which `verify` and `judge` do not start. No step is verified or judged."""
        file = self.folder / "verify.toml"
        lines = ["[[verification]]", 'name = "none"', 'verifier = "exact"', 'environments = ["none"]']
        file.write_text("\n".join([*lines, 'expected = "none.jsonl"']))
        (self.folder / "none.jsonl").write_text("")
        return {
            "STEPSTREAM_VERIFY_FILE": str(file),
            "STEPSTREAM_JUDGE_URL": "http://127.0.0.1:1/v1",
            "STEPSTREAM_JUDGE_MODEL": "none",
            "STEPSTREAM_JUDGE_AGENTS": "none",
        }

    @contextmanager
    def job(self, name: str) -> "Iterator[Job]":
        """Run one worker of the job `stepstream.jobs.NAME`."""
        port = free_block(1)
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"stepstream.jobs.{name}"],
                env=self.environment(STEPSTREAM_METRICS_PORT=str(port), **self._job_settings()),
                stderr=log,
            )
        try:
            yield Job(process, port, 0.05 if self.quick else 0.3)
        finally:
            process.terminate()
            process.wait()


class Job:
    """A running job worker, read through its metrics."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, pause_s: float) -> None:
        """`pause_s` is the time between two reads of the metrics, each of which takes milliseconds of the worker."""
        self.process = psutil.Process(process.pid)
        self._pause_s = pause_s
        self._url = f"http://127.0.0.1:{port}/metrics"

    def metric(self, name: str, topics: tuple[str, ...] = ()) -> float:
        """Return the sum of a metric over all labels, or over the given topics; 0 while it does not answer."""
        try:
            with urllib.request.urlopen(self._url, timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0.0
        samples = [line for line in lines if line.startswith((name + " ", name + "{"))]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in samples
            if not topics or any(f'topic="{t}"' in line for t in topics)
        )

    def wait_ready(self) -> None:
        """Wait until the job has its partitions."""
        wait_for(lambda: self.metric("stepstream_job_ready") == 1)

    def rate(self, topics: tuple[str, ...], total: int) -> float:
        """Return the records per second until `total` records of the topics are processed."""
        seen = [(time.monotonic(), 0.0)]

        def done() -> bool:
            count = self.metric("stepstream_job_records_in_total", topics)
            if count > seen[-1][1]:
                seen.append((time.monotonic(), count))
            return count >= total

        wait_for(done, self._pause_s)
        # Without the first batch, which includes the start, if there are several.
        (began, first), (ended, last) = seen[1 if len(seen) > 2 else 0], seen[-1]
        return (last - first) / (ended - began)

    def cost(self) -> tuple[float, float]:
        """Return its CPU seconds and resident MB."""
        times = self.process.cpu_times()
        return times.user + times.system, self.process.memory_info().rss / 1e6


def is_idle(job: Job) -> bool:
    """Return True if the job read no record for a second, so earlier measurements are processed."""
    before = job.metric("stepstream_job_records_in_total")
    time.sleep(1.0)
    return job.metric("stepstream_job_records_in_total") == before


def wait_for(condition: Callable[[], bool], pause_s: float = 0.1) -> None:
    """Block until `condition` is true; exit after `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"no progress within {TIMEOUT_S:g} s: see the jobs' logs in the bench's folder")
        time.sleep(pause_s)
