"""Measure the cost of one trajectory in `label` against its number of steps.

Run it as `.venv/bin/python bench/label_length.py [--quick]`. It folds the steps of a trajectory one a batch, as they
come from a slow agent, then the feedback that ends it, over a RocksDB state in a temporary folder. It needs no broker:
the figures are of the fold alone, with decoding, building and encoding of the label, and the writes.

Steps are small (20 new tokens), so that the cost of the state shows beside the cost of the content.
"""

import argparse
import hashlib
import io
import json
import random
import struct
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
from streams.traffic import governed, trajectory

from stepstream.jobs.labels import JOB
from stepstream.jobs.labels.fold import LabelFold
from stepstream.jobs.rewards.spec import RewardSpec
from stepstream.jobs.rewards.spec_lookup import FixedSpec
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import PartitionState
from stepstream.schemas import schema
from stepstream.topics.catalogue import GOVERNED_FEEDBACK, GOVERNED_STEPS, LABELED_TRAJECTORIES, TOPICS
from stepstream.topics.events import Step

LENGTHS = (250, 500, 1_000, 2_000, 4_000)
QUICK_LENGTHS = (250, 500, 1_000)
NEW_TOKENS = 10


@cache
def parsed(topic: str) -> Any:
    """Return the schema of a topic."""
    return fastavro.parse_schema(schema(TOPICS[topic].schema))


class LocalCodec:
    """Encodes and decodes with the package's schemas, without a registry."""

    def encode(self, topic: str, record: Any) -> bytes:
        """Return the Avro encoding of a record."""
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed(topic), record)
        return out.getvalue()

    def decode(self, topic: str, value: bytes | None) -> Any:
        """Reverse `encode`."""
        assert value is not None
        return fastavro.schemaless_reader(io.BytesIO(value), parsed(topic), None)

    def close(self) -> None:
        """Do nothing."""


def steps_of(count: int) -> tuple[list[Step], Any]:
    """Return the steps of one append-only trajectory, and the feedback that ends it."""
    rng = random.Random(0)
    [pattern, *_], ending = trajectory("t-0", rng)
    steps, length, hashed = [], 0, hashlib.sha256()
    for index in range(count):
        prompt, response = ([rng.randrange(50_000) for _ in range(NEW_TOKENS)] for _ in range(2))
        fields: Any = {
            "event_id": f"00000000-0000-4000-8000-{index:012}",
            "step_index": index,
            "prompt_shared_messages": 2 * index,
            "prompt_shared_tokens": length,
            "prompt_shared_digest": hashed.hexdigest() if index else None,
            "prompt_token_ids": prompt,
            "response_token_ids": response,
            "response_logprobs": [-1.0] * NEW_TOKENS,
            "policy_spans": [pattern["policy_spans"][0] | {"end": NEW_TOKENS}],
        }
        steps.append(pattern | fields)
        hashed.update(struct.pack(f"<{2 * NEW_TOKENS}i", *prompt, *response))
        length += 2 * NEW_TOKENS
    return steps, ending | {"last_step_index": count - 1}


def measure(count: int) -> dict[str, float]:
    """Return seconds and megabytes written of a trajectory of `count` steps, one a batch."""
    codec: Any = LocalCodec()
    steps, ending = steps_of(count)
    records = [(GOVERNED_STEPS, index, governed(step)) for index, step in enumerate(steps)]
    records.append((GOVERNED_FEEDBACK, 0, governed(ending)))
    encoded = [
        Record(topic, 0, offset, 1_760_000_000_000, b"t-0", codec.encode(topic, event))
        for topic, offset, event in records
    ]
    with tempfile.TemporaryDirectory() as folder:
        state = PartitionState(Path(folder) / "0")
        fold = LabelFold(state, FixedSpec(RewardSpec()), codec)
        written, published = 0, []
        began = time.perf_counter()
        for record in encoded:
            changes, out = state.begin(), Outputs(JOB, codec, lambda call: call())
            fold.apply(record, codec.decode(record.topic, record.value), changes, out)
            fold.end_batch(changes, out)
            written += sum(len(key) + len(value or b"") for key, value in changes.overlay.items())
            state.write(changes, {record.topic: record.offset + 1}, record.timestamp_ms)
            published += out.events
        seconds = time.perf_counter() - began
        state.close()
    [label] = [codec.decode(LABELED_TRAJECTORIES, event.value) for event in published]
    assert (len(label["steps"]), label["trainable"]) == (count, True), label["flags"]
    return {"seconds": seconds, "written_mb": written / 1e6}


def main() -> None:
    """Print a table, then one line of JSON with the figures of the longest trajectory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter trajectories")
    lengths = QUICK_LENGTHS if parser.parse_args().quick else LENGTHS
    measure(50)  # imports and caches
    print(f"{'steps':>6} {'seconds':>8} {'ms a step':>10} {'MB written':>11} {'kB a step':>10}")
    results = {}
    for count in lengths:
        result = results[count] = measure(count)
        a_step = result["seconds"] / count * 1e3, result["written_mb"] / count * 1e3
        print(
            f"{count:>6} {result['seconds']:>8.2f} {a_step[0]:>10.2f} {result['written_mb']:>11.1f} {a_step[1]:>10.2f}"
        )
    shortest, longest = lengths[0], lengths[-1]
    figures = {
        "steps": longest,
        "label_s": round(results[longest]["seconds"], 2),
        "label_written_mb": round(results[longest]["written_mb"], 1),
        "ratio_seconds_a_step": round(
            results[longest]["seconds"] / longest / (results[shortest]["seconds"] / shortest), 2
        ),
    }
    print(json.dumps({"label_length": figures}))


if __name__ == "__main__":
    main()
