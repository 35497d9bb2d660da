"""How many steps a second arrive durably, beside Agent Lightning's store, and what a kill -9 costs.

Run it as `.venv/bin/python bench/ingest.py [--quick]`. It starts a broker and a registry of its own, a gateway, and
Agent Lightning's LightningStore server in an environment of its own.

OTLP: one client, eight connections, batches of 100 spans in protobuf (20 agent runs of four model calls of 1.4 kB),
the next one sent when the last is acknowledged: by us once Kafka has every step (acks=all), by the peer once they are
in its memory, which is all it has. Our gateway runs as two processes, as it is scaled; the peer's store is one process
by its making (several need a MongoDB behind it). All share the machine's cores with client and broker, so the figures
for each CPU-second of the servers tell what one core would do. Kafka: one process that encodes steps of the same
content and produces them, timed until the last is acknowledged. SDK: one process that records such steps and flushes
after every 4000.

Then each server is killed (-9) under load and started again (ours with its broker killed too, and the SDK's process),
and what was acknowledged is looked for. Medians of the rounds, which alternate.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import otlp_load
import psutil
import sdk_load
from gateway import ENVIRONMENT, answers, running, wait_for
from otlp_load import CALLS_OF_RUN, RUNS_OF_BATCH, SPANS, Load
from peers import python_of

from stepstream.config import Settings, environment_of, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import KafkaReady
from stepstream.embedded.stack import Stack
from stepstream.services.gateway.otlp.assembly import JOB, Assembler
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.places import Places
from stepstream.services.gateway.otlp.protocol import TraceRequest
from stepstream.services.gateway.otlp.spans import spans_of
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.ids import derived_id
from stepstream.topics.producer import EventProducer

AGENT_LIGHTNING = ["agentlightning==0.3.0"]
STEPS_OF_BATCH = RUNS_OF_BATCH * CALLS_OF_RUN
WARM_S = 1.0
GATEWAYS = 2
CORES = sorted(os.sched_getaffinity(0))


@dataclass
class Server:
    """Something that takes spans."""

    ports: list[int]
    processes: list[psutil.Process]
    resource: dict[str, str]

    def cpu_s(self) -> float:
        """CPU seconds used so far."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)

    def is_connected(self) -> bool:
        """Whether the client has found every process."""
        return all(
            any(c.status == psutil.CONN_ESTABLISHED and c.laddr.port in self.ports for c in process.net_connections())
            for process in self.processes
        )

    def kill(self) -> None:
        """kill -9."""
        for process in self.processes:
            process.send_signal(signal.SIGKILL)


@dataclass
class Round:
    """Spans per second and per CPU-second of the server."""

    rate: float
    per_core: float


@contextmanager
def gateway(folder: Path, settings: Settings) -> Iterator[Server]:
    """Our gateway; its model upstream does not matter here."""
    ports = [free_block(1) for _ in range(GATEWAYS)]
    arguments = [sys.executable, "-m", "stepstream.services.gateway"]
    with ExitStack() as opened:
        processes = []
        for port in ports:
            ours = environment_of(settings) | {"STEPSTREAM_GATEWAY_PORT": str(port)}
            log = folder / f"gateway-{port}.log"
            processes.append(opened.enter_context(running(arguments, CORES, log, **ours)))
        for port in ports:
            wait_for(lambda port=port: answers(f"http://127.0.0.1:{port}/health"), "the gateway")
        yield Server(ports, processes, {})


@contextmanager
def lightning(folder: Path) -> Iterator[Server]:
    """Agent Lightning's store, with one rollout that spans can belong to."""
    port = free_block(1)
    python = str(python_of("agentlightning", AGENT_LIGHTNING))
    arguments = [python, "-m", "agentlightning.cli.store", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--log-level", "WARNING"]
    with running(arguments, CORES, folder / "lightning.log", LITELLM_LOCAL_MODEL_COST_MAP="True") as process:
        url = f"http://127.0.0.1:{port}/v1/agl"
        wait_for(lambda: answers(f"{url}/health"), "Agent Lightning's store")
        ask = urllib.request.Request(f"{url}/rollouts", b'{"input": {}}', {"content-type": "application/json"})
        with urllib.request.urlopen(ask, timeout=30) as reply:
            rollout = json.load(reply)
        ids = {
            "agentlightning.rollout_id": rollout["rollout_id"],
            "agentlightning.attempt_id": rollout["attempt"]["attempt_id"],
        }
        yield Server([port], [process], ids)


class Client:
    """Sends batches from a process of its own; numbers go on from run to run, so that no id comes twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first = 1

    def start(self, server: Server, seconds: float) -> "subprocess.Popen[str]":
        """Begins to send."""
        file = self._folder / f"load-{self._first}.json"
        file.write_text(json.dumps(asdict(Load(server.ports, seconds, self._first, server.resource))))
        self._first += 1_000_000
        return subprocess.Popen([sys.executable, otlp_load.__file__, str(file)], stdout=subprocess.PIPE, text=True)

    def rate(self, server: Server, seconds: float) -> Round:
        """Spans per second, the start left out."""
        sending = self.start(server, seconds)
        time.sleep(2 * WARM_S)
        since, cpu = time.monotonic(), server.cpu_s()
        time.sleep(seconds - 2 * WARM_S)
        until, cpu = time.monotonic(), server.cpu_s() - cpu
        told = said(sending)
        if told["failed"]:
            raise SystemExit(f"{told['failed']} of the batches were not acknowledged: see the servers' logs")
        spans = SPANS * sum(since <= at < until for _, at in told["acknowledged"])
        return Round(spans / (until - since), spans / cpu)


def said(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What the client reports at its end."""
    out, _ = process.communicate(timeout=120)
    found: dict[str, Any] = json.loads(out)
    return found


def kafka_rate(settings: Settings, count: int) -> float:
    """Steps per second of one producer of records that are made already, encoding included."""
    records = batch_steps()
    codec = Codec(settings.schema_registry)
    producer = EventProducer(settings.kafka, codec, "bench/1", linger_ms=5)
    producer.send("steps", "warm", records[0])
    producer.flush()
    began = time.perf_counter()
    for number in range(count):
        record = records[number % len(records)]
        while True:
            try:
                producer.send("steps", record["trajectory_id"], record)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()
    seconds = time.perf_counter() - began
    codec.close()
    return count / seconds


class Recorder:
    """Processes that record with the SDK; names go on from one to the next, so that no trajectory comes twice."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._environment = ENVIRONMENT | environment_of(settings)
        self._started = 0

    def start(self, seconds: float) -> "Recording":
        """Begins to record."""
        self._started += 1
        name = f"recorded-{self._started}"
        told = self._folder / f"{name}.jsonl"
        with told.open("w") as out:
            arguments = [sys.executable, sdk_load.__file__, name, str(seconds)]
            return Recording(name, told, subprocess.Popen(arguments, stdout=out, env=self._environment))

    def rate(self, seconds: float) -> float:
        """Steps per second, the first flush left out."""
        recording = self.start(seconds)
        if recording.process.wait():
            raise SystemExit("the SDK's process failed")
        flushes = recording.flushes()
        (first, since), (last, until) = flushes[0], flushes[-1]
        return (last - first) * CALLS_OF_RUN / (until - since)


@dataclass
class Recording:
    """One process that records with the SDK, and the file that it tells of its flushes in."""

    name: str
    told: Path
    process: "subprocess.Popen[bytes]"

    def flushes(self) -> list[tuple[int, float]]:
        """How many runs each flush made durable, from the start, and when."""
        return [(runs, at) for runs, at in map(json.loads, self.told.read_text().splitlines())]


def batch_steps() -> list[Any]:
    """The steps that one batch of spans becomes."""
    traces: dict[str, Trace] = {}
    for span in spans_of(TraceRequest.FromString(otlp_load.body({}))):
        traces.setdefault(span.trace_id, Trace(span.trace_id)).add(span)
    assembler = Assembler("bench/1", Places(1000))
    defaults = Defaults("default", "train", "agent")
    return [found.record for trace in traces.values() for found in assembler.records(trace, defaults)]


def lost_by_us(
    folder: Path, stack: Stack, client: Client, recorder: Recorder, seconds: float
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Steps acknowledged before gateway, SDK and broker were killed, and how many of those Kafka has not afterwards.

    Over OTLP, and by the SDK.
    """
    with gateway(folder, stack.settings) as server:
        sending = client.start(server, 10 * seconds)
        recording = recorder.start(10 * seconds)
        wait_for(server.is_connected, "the client")
        wait_for(lambda: len(recording.flushes()) > 0, "the SDK's process")
        time.sleep(seconds)
        server.kill()
        recording.process.kill()
        recording.process.wait()
        running_now = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
        broker = next(p for p in running_now if "kafka.Kafka" in p.cmdline())
        broker.send_signal(signal.SIGKILL)
        told = said(sending)
    ready = KafkaReady(stack.settings.kafka)
    wait_for(ready, "the broker, again")
    expected = {
        derived_id(JOB, otlp_load.trace_id(n, r).hex(), otlp_load.span_id(n, r, c).hex(), "step")
        for n, _ in told["acknowledged"]
        for r in range(RUNS_OF_BATCH)
        for c in range(1, CALLS_OF_RUN + 1)
    }
    with gateway(folder, stack.settings) as server:  # it must serve again after that
        client.rate(server, 3 * WARM_S)
    ids, keys = stored(stack.settings)
    runs = recording.flushes()[-1][0]
    there = sum(min(keys[f"{recording.name}-{number}"], CALLS_OF_RUN) for number in range(runs))
    return (len(expected), len(expected - ids)), (runs * CALLS_OF_RUN, runs * CALLS_OF_RUN - there)


def stored(settings: Settings) -> tuple[set[str], Counter[str]]:
    """Ids of all events on `steps`, the first field of each record after the header of five bytes; events by key."""
    found: set[str] = set()
    keys: Counter[str] = Counter()
    codec = Codec(settings.schema_registry)
    with EventConsumer(settings.kafka, codec) as consumer:
        consumer.follow(["steps"])
        while not consumer.caught_up():
            for event in consumer.poll(10_000, 0.2):
                found.add(event.value[6:42].decode())
                keys[event.key] += 1
    codec.close()
    return found, keys


def lost_by_them(folder: Path, client: Client, seconds: float) -> tuple[int, int]:
    """The same of Agent Lightning's store, in spans."""
    with lightning(folder) as server:
        sending = client.start(server, 10 * seconds)
        wait_for(server.is_connected, "the client")
        time.sleep(seconds)
        server.kill()
        told = said(sending)
    with lightning(folder) as server:
        url = f"http://127.0.0.1:{server.ports[0]}/v1/agl/statistics"
        with urllib.request.urlopen(url, timeout=30) as reply:
            there = json.load(reply)
    sent = len(told["acknowledged"]) * SPANS
    return sent, sent - int(there.get("total_spans", 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round, under a minute")
    quick = parser.parse_args().quick
    rounds, seconds, produced = (1, 4.0, 50_000) if quick else (5, 10.0, 300_000)
    ours: list[Round] = []
    theirs: list[Round] = []
    plain: list[float] = []
    recorded: list[float] = []
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="stepstream-bench-")))
        stack = opened.enter_context(Stack(isolated(load({}), folder / "stack"), ["broker", "registry"]))
        client = Client(folder)
        recorder = Recorder(folder, stack.settings)
        for _ in range(rounds):
            with gateway(folder, stack.settings) as server:
                ours.append(client.rate(server, seconds))
            with lightning(folder) as server:
                theirs.append(client.rate(server, seconds))
            plain.append(kafka_rate(stack.settings, produced))
            recorded.append(recorder.rate(seconds))
        (our_sent, our_lost), (sdk_sent, sdk_lost) = lost_by_us(folder, stack, client, recorder, seconds / 2)
        their_sent, their_lost = lost_by_them(folder, client, seconds / 2)
    otlp, peer = statistics.median(r.rate for r in ours), statistics.median(r.rate for r in theirs)
    kafka = statistics.median(plain)
    our_core, their_core = (statistics.median(r.per_core for r in found) for found in (ours, theirs))
    figures = {
        "otlp_spans_per_s": otlp,
        "otlp_spans_per_cpu_s": our_core,
        "otlp_steps_per_s": otlp * STEPS_OF_BATCH / SPANS,
        "kafka_steps_per_s": kafka,
        "sdk_steps_per_s": statistics.median(recorded),
        "agent_lightning_spans_per_s": peer,
        "agent_lightning_spans_per_cpu_s": their_core,
        "ratio_to_agent_lightning": otlp / peer,
        "kafka_ratio_to_agent_lightning": kafka / peer,
        "acknowledged_before_kill": our_sent,
        "cpu_ratio_to_agent_lightning": our_core / their_core,
        "lost": our_lost,
        "sdk_acknowledged_before_kill": sdk_sent,
        "sdk_lost": sdk_lost,
        "agent_lightning_acknowledged_before_kill": their_sent,
        "agent_lightning_lost": their_lost,
    }
    for name, value in figures.items():
        print(f"{name:44}{value:>14,.2f}")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
