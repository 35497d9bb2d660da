"""Measure the rate of durable steps against Agent Lightning's store, and the loss after kill -9.

Run it as `.venv/bin/python bench/ingest.py [--quick]`. It starts its own broker and registry, a gateway, and Agent
Lightning's LightningStore server in its own environment.

OTLP: one client with eight connections sends batches of 100 spans in protobuf (20 agent runs of four model calls of 1.4
kB), each after the acknowledgement of the last. The gateway acknowledges when Kafka has every step (acks=all); the peer
when the spans are in its memory, its only storage. The gateway runs as two processes, as it scales; the peer's store is
one process (several need a MongoDB). The broker uses both of Java's compilers, as in production. All share the
machine's cores with client and broker, so the figures per CPU-second of the servers show the rate of one core. Kafka:
one process encodes and produces steps of the same content, timed until the last acknowledgement. SDK: one process
records the same steps and flushes after every 4000.

Then the bench kills each server (-9) under load, the gateway together with its broker and the SDK's process, restarts
it, and counts the acknowledged events that are missing. Rates are medians of alternating rounds, and ratios are medians
of the rounds' ratios. Before the first round, the broker takes the load of one: Java compiles its code meanwhile.
"""

import argparse
import json
import signal
import statistics
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import otlp_load
import psutil
from gateway import wait_for
from ingest_senders import WARM_S, Client, Recorder, Round, outcome_of
from ingest_servers import gateway, lightning
from otlp_load import CALLS_OF_RUN, RUNS_OF_BATCH, SPANS

from stepstream.config import Settings, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.ready import KafkaReady
from stepstream.embedded.stack import Stack
from stepstream.services.gateway.otlp.assembly import JOB, Assembler
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.services.gateway.otlp.spans import spans_of
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.wire import TraceRequest
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.ids import derived_id
from stepstream.topics.producer import EventProducer

STEPS_OF_BATCH = RUNS_OF_BATCH * CALLS_OF_RUN
BROKER = {"STEPSTREAM_BROKER_OPTIMIZING_COMPILER": "true"}
"""Environment of the broker's settings: both of Java's compilers, as a broker in production has."""


def kafka_rate(settings: Settings, count: int) -> float:
    """Return the steps per second of one producer, with encoding; the records exist before."""
    records = batch_steps()
    codec = Codec(settings)
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


def batch_steps() -> list[Any]:
    """Return the steps that one batch of spans becomes."""
    traces: dict[str, Trace] = {}
    for span in spans_of(TraceRequest.FromString(otlp_load.body({}))):
        traces.setdefault(span.trace_id, Trace(span.trace_id)).add(span)
    assembler = Assembler("bench/1", SpanIndex(1000))
    defaults = Defaults("default", "train", "agent")
    return [each.record for trace in traces.values() for each in assembler.records(trace, defaults)]


def lost_by_stepstream(
    folder: Path, stack: Stack, client: Client, recorder: Recorder, seconds: float
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Kill gateway, SDK and broker; return (acknowledged before, missing in Kafka after) in steps, for OTLP and SDK."""
    since = ends(stack.settings)
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
        outcome = outcome_of(sending)
    ready = KafkaReady(stack.settings.kafka)
    wait_for(ready, "the restarted broker")
    expected = {
        derived_id(JOB, otlp_load.trace_id(n, r).hex(), otlp_load.span_id(n, r, c).hex(), "step")
        for n, _ in outcome["acknowledged"]
        for r in range(RUNS_OF_BATCH)
        for c in range(1, CALLS_OF_RUN + 1)
    }
    with gateway(folder, stack.settings) as server:  # the restarted gateway must serve
        client.rate(server, 3 * WARM_S)
    ids, keys = stored(stack.settings, since)
    runs = recording.flushes()[-1][0]
    present = sum(min(keys[f"{recording.name}-{number}"], CALLS_OF_RUN) for number in range(runs))
    return (len(expected), len(expected - ids)), (runs * CALLS_OF_RUN, runs * CALLS_OF_RUN - present)


def ends(settings: Settings) -> dict[tuple[str, int], int]:
    """Return the current end offsets of `steps` by (topic, partition)."""
    codec = Codec(settings)
    with EventConsumer(settings.kafka, codec) as consumer:
        offsets = consumer.end_offsets("steps")
    codec.close()
    return {("steps", partition): offset for partition, offset in offsets.items()}


def stored(settings: Settings, since: dict[tuple[str, int], int]) -> tuple[set[str], Counter[str]]:
    """Return the ids of the events on `steps` from these offsets on, and the number of events by key."""
    ids: set[str] = set()
    keys: Counter[str] = Counter()
    codec = Codec(settings)
    with EventConsumer(settings.kafka, codec) as consumer:
        consumer.follow(["steps"], since)
        while not consumer.is_caught_up():
            for event in consumer.poll(10_000, 0.2):
                ids.add(event.value[6:42].decode())  # after the header of 5 bytes and the length
                keys[event.key] += 1
    codec.close()
    return ids, keys


def lost_by_agent_lightning(folder: Path, client: Client, seconds: float) -> tuple[int, int]:
    """Kill Agent Lightning's store; return (acknowledged before, missing after) in spans."""
    with lightning(folder) as server:
        sending = client.start(server, 10 * seconds)
        wait_for(server.is_connected, "the client")
        time.sleep(seconds)
        server.kill()
        outcome = outcome_of(sending)
    with lightning(folder) as server:
        url = f"http://127.0.0.1:{server.ports[0]}/v1/agl/statistics"
        with urllib.request.urlopen(url, timeout=30) as reply:
            statistics_after = json.load(reply)
    sent = len(outcome["acknowledged"]) * SPANS
    return sent, sent - int(statistics_after.get("total_spans", 0))


def median_ratio(values: list[float], peers: list[float]) -> float:
    """Return the median of the rounds' ratios: the machine's speed changes between rounds more than within one."""
    return statistics.median(value / peer for value, peer in zip(values, peers, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round, under a minute")
    quick = parser.parse_args().quick
    rounds, seconds, produced = (1, 4.0, 50_000) if quick else (5, 10.0, 300_000)
    stepstream_rounds: list[Round] = []
    peer_rounds: list[Round] = []
    plain: list[float] = []
    recorded: list[float] = []
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="stepstream-bench-")))
        stack = opened.enter_context(Stack(isolated(load(BROKER), folder / "stack"), ["broker", "registry"]))
        client = Client(folder)
        recorder = Recorder(folder, stack.settings)
        with gateway(folder, stack.settings) as server:  # Java compiles the broker's hot code meanwhile
            client.rate(server, seconds)
        kafka_rate(stack.settings, produced)
        for number in range(rounds):
            with gateway(folder, stack.settings) as server:
                stepstream_rounds.append(client.rate(server, seconds))
            with lightning(folder) as server:
                peer_rounds.append(client.rate(server, seconds))
            plain.append(kafka_rate(stack.settings, produced))
            recorded.append(recorder.rate(seconds))
            otlp, peer = stepstream_rounds[-1].rate, peer_rounds[-1].rate
            rates = f"OTLP {otlp:,.0f}, Agent Lightning {peer:,.0f}, Kafka {plain[-1]:,.0f}, SDK {recorded[-1]:,.0f}"
            print(f"round {number + 1} of {rounds}: {rates} a second", flush=True)
        (otlp_sent, otlp_lost), (sdk_sent, sdk_lost) = lost_by_stepstream(folder, stack, client, recorder, seconds / 2)
        peer_sent, peer_lost = lost_by_agent_lightning(folder, client, seconds / 2)
    otlp = statistics.median(r.rate for r in stepstream_rounds)
    peers = [r.rate for r in peer_rounds]
    figures = {
        "otlp_spans_per_s": otlp,
        "otlp_spans_per_cpu_s": statistics.median(r.per_core for r in stepstream_rounds),
        "otlp_steps_per_s": otlp * STEPS_OF_BATCH / SPANS,
        "kafka_steps_per_s": statistics.median(plain),
        "sdk_steps_per_s": statistics.median(recorded),
        "agent_lightning_spans_per_s": statistics.median(peers),
        "agent_lightning_spans_per_cpu_s": statistics.median(r.per_core for r in peer_rounds),
        "ratio_to_agent_lightning": median_ratio([r.rate for r in stepstream_rounds], peers),
        "kafka_ratio_to_agent_lightning": median_ratio(plain, peers),
        "acknowledged_before_kill": otlp_sent,
        "cpu_ratio_to_agent_lightning": median_ratio(
            [r.per_core for r in stepstream_rounds], [r.per_core for r in peer_rounds]
        ),
        "lost": otlp_lost,
        "sdk_acknowledged_before_kill": sdk_sent,
        "sdk_lost": sdk_lost,
        "agent_lightning_acknowledged_before_kill": peer_sent,
        "agent_lightning_lost": peer_lost,
    }
    for name, value in figures.items():
        print(f"{name:44}{value:>14,.2f}")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
