"""Measure how long `label` takes to recover a partition from a snapshot and the records after it.

Run it as `.venv/bin/python bench/recovery.py [--quick]`. It starts its own broker and registry on free ports, with data
in a temporary folder.

The history is folded without Kafka, in batches of 500 with a RocksDB write each: a lower bound of the time of a replay.
The state then has 20,000 trajectories, since older ones expire. Its snapshot goes to a store. The log gets as many
empty records as the history has, which are deleted, as retention does, and then the records after the snapshot. The
recovery is that of the job: it finds the snapshot, checks and opens it, and folds those records from the broker. It
runs for a history and for ten times that history: time and memory must be flat.
"""

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from streams.traffic import governed, trajectory

from stepstream.config import Settings, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.label import Label
from stepstream.jobs.labels import JOB
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.processor import FoldProcessor, consumer_group
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.snapshot_store import SnapshotStore
from stepstream.jobs.runtime.snapshots import snapshot_address
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.catalogue import GOVERNED_FEEDBACK, GOVERNED_STEPS
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec

BATCH = 500
DAY_MS = 86_400_000
TOPICS = (GOVERNED_STEPS, GOVERNED_FEEDBACK)


class History:
    """Records of complete trajectories: four steps and the feedback that ends them."""

    def __init__(self, codec: Codec, live: int, days: float) -> None:
        self._codec, self._live = codec, live
        self._rng, self._number = random.Random(0), 0
        self._began_ms = time.time_ns() // 1_000_000 - int(days * DAY_MS)
        self.offsets = dict.fromkeys(TOPICS, 0)

    def records(self, count: int) -> list[Record]:
        """Return the next `count` records, in partition 0; `live` trajectories arrive in a day."""
        found: list[Record] = []
        while len(found) < count:
            at_ms = self._began_ms + self._number * DAY_MS // self._live
            steps, ending = trajectory(f"t-{self._number}", self._rng)
            self._number += 1
            for topic, event in [*((GOVERNED_STEPS, step) for step in steps), (GOVERNED_FEEDBACK, ending)]:
                value = self._codec.encode(topic, governed(event))
                key = event["trajectory_id"].encode()
                found.append(Record(topic, 0, self.offsets[topic], at_ms, key, value))
                self.offsets[topic] += 1
        return found


def fold(settings: Settings, history: History, count: int, folder: Path, log: str) -> tuple[PartitionState, float]:
    """Fold `count` records of history into a state; return it with the seconds of the folding alone."""
    job, codec = Label(settings), Codec(settings)
    state = PartitionState(folder)
    state.reset(log)
    partition_fold, seconds = job.fold(state), 0.0
    for _ in range(0, count, BATCH):
        records = history.records(BATCH)
        began = time.perf_counter()
        changes, out = state.begin(), Outputs(JOB, codec, lambda call: call())
        for record in records:
            partition_fold.apply(record, codec.decode(record.topic, record.value), changes, out)
        partition_fold.end_batch(changes, out)
        state.write(changes, history.offsets, time.time_ns() // 1_000_000)
        changes, out = state.begin(), Outputs(JOB, codec, lambda call: call())
        out.replaying = True
        partition_fold.tick(records[-1].timestamp_ms, changes, out)
        state.write(changes, {}, time.time_ns() // 1_000_000)
        seconds += time.perf_counter() - began
    job.close()
    codec.close()
    return state, seconds


def write_log(settings: Settings, before: dict[str, int], tail: list[Record]) -> None:
    """Write empty records in place of the history, delete them, then write the tail and commit its offsets."""
    producer = Producer(client_config(settings.kafka) | {"queue.buffering.max.messages": 1_000_000})
    for topic, count in before.items():
        for number in range(count):
            producer.produce(topic, b"", partition=0)
            if number % 10_000 == 0:
                producer.flush()
    producer.flush()
    admin = AdminClient(client_config(settings.kafka))
    for future in admin.delete_records([TopicPartition(topic, 0, end) for topic, end in before.items()]).values():
        future.result()
    ends = dict(before)
    for record in tail:
        producer.produce(record.topic, record.value, key=record.key, partition=0)
        ends[record.topic] += 1
    producer.flush()
    consumer = Consumer(client_config(settings.kafka) | {"group.id": consumer_group(Label.name)})
    consumer.commit(offsets=[TopicPartition(topic, 0, end) for topic, end in ends.items()], asynchronous=False)
    consumer.close()


def measure(folder: Path, history: int, tail: int, live: int) -> dict[str, float]:
    """Recover a partition with a history, on a stack of its own."""
    settings = isolated(load({}), folder)
    settings = settings.model_copy(update={"label": settings.label.model_copy(update={"keep_days": 1})})
    with Stack(settings, ["broker", "registry"]) as stack:
        settings = stack.settings
        codec = Codec(settings)
        source = History(codec, live // 2, days=history / 5 / (live // 2))  # 1 to 2 days are kept
        processor = FoldProcessor(settings, Label(settings), lambda: False)
        log = processor._reader.identity(Label.inputs)
        state, fold_s = fold(settings, source, history, folder / "built" / "0", log)
        at = dict(state.position)
        state.checkpoint(folder / "checkpoint")
        store = SnapshotStore(snapshot_address(settings), Label.name, Label.version, 2, lambda: False)
        manifest = store.write(folder / "checkpoint", log, 0, at, state.ticks, state.written_ms)
        size = sum(file.size_bytes for file in manifest.files)
        trajectories = sum(1 for _ in state.scan(b"h"))
        state.close()
        write_log(settings, at, source.records(tail))
        before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        began = time.perf_counter()
        [partition] = processor._recovery.open([0], lambda: None)
        seconds = time.perf_counter() - began
        after_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        assert sum(partition.state.position.values()) == sum(source.offsets.values()), partition.state.position
        partition.state.close()
        processor.shut_down()
        codec.close()
    return {
        "history": history,
        "trajectories": trajectories,
        "snapshot_mb": size / 1e6,
        "fold_s": fold_s,
        "recovery_s": seconds,
        "peak_mb": after_mb,
        "grown_mb": after_mb - before_mb,
    }


def main() -> None:
    """Print a table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="1,000 and 10,000 records of history instead of 100,000 and 1M"
    )
    quick = parser.parse_args().quick
    history, tail, live = (1_000, 500, 100) if quick else (100_000, 10_000, 28_000)
    results = []
    for factor in (1, 10):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(Path(folder), factor * history, tail, live))
        print(", ".join(f"{name} {value:.3g}" for name, value in results[-1].items()), file=sys.stderr)
    tenth, whole = results
    figures = {
        "history": whole["history"],
        "trajectories": whole["trajectories"],
        "snapshot_s": round(whole["recovery_s"], 2),
        "ratio_to_replay": round(whole["fold_s"] / whole["recovery_s"], 1),
        "ratio_time_of_ten_times": round(whole["recovery_s"] / tenth["recovery_s"], 2),
        "ratio_memory_of_ten_times": round(whole["peak_mb"] / tenth["peak_mb"], 2),
    }
    print(json.dumps({"recovery": figures}))


if __name__ == "__main__":
    main()
