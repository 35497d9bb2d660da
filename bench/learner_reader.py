"""Measure the learner's updates per second with decoding in a process of its own and in a thread.

Run it as `.venv/bin/python bench/learner_reader.py [--quick]`. It starts its own broker and registry on free ports,
with data in a temporary folder. The log of labelled trajectories holds short attempts of the learner's model and,
between them, long attempts of other models, which the learner decodes and leaves out: as in an installation with
several models. Learners of the tiny model take turns, one at a time, each with a model name of its own: the same log,
as many own attempts. The rate is that between the first and the last update.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from stepstream.config import Settings, environment_of, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.learner.publish import publish_root
from stepstream.learner.tiny.model import MAX_LENGTH, build_model, build_tokenizer
from stepstream.topics import events
from stepstream.topics.catalogue import LABELED_TRAJECTORIES, LEARNER_UPDATES
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

GROUPS, SIZE = 8, 4
"""Groups of an update, and attempts of a group."""
OTHERS, OWN_TOKENS, OTHER_TOKENS = 6, 160, 2_000
"""Attempts of other models for each attempt of a run, and tokens of an attempt."""
TIMEOUT_S = 300.0


def attempt(model: str, group: str, number: int, tokens: int, rng: random.Random) -> events.LabeledTrajectory:
    """Return an attempt of one step, whose later half was sampled by version 0."""
    ids = [rng.randrange(4, 90) for _ in range(tokens)]
    half = tokens // 2
    span = events.new_sequence_span(start=half, end=tokens, step_index=0, model=model, version=0)
    logprobs = [rng.uniform(-5.0, -4.0) for _ in range(tokens - half)]
    reward = float(number % 2)
    return events.new_labeled_trajectory(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        trajectory_id=f"{model}/{group}/{number}",
        revision=1,
        consent="train",
        agent="bench",
        model=model,
        fidelity="token",
        closed_by="end",
        complete=True,
        reward=reward,
        reward_spec="outcome",
        started_at_us=now_us(),
        ended_at_us=now_us(),
        labelled_by="bench@1",
        group_id=group,
        version_min=0,
        version_max=0,
        success=reward == 1.0,
        steps=[events.new_labeled_step(step_index=0, event_id="s", reward=reward, return_to_go=reward)],
        sequences=[events.new_training_sequence(token_ids=ids, spans=[span], logprobs=logprobs)],
        trainable=True,
    )


def fill(settings: Settings, models: list[str], updates: int) -> int:
    """Write the log; return its number of records."""
    rng, records = random.Random(0), 0
    per_model = updates * GROUPS * SIZE
    with closing(Codec(settings)) as codec:
        producer = EventProducer(settings.kafka, codec, "bench/1", linger_ms=5)
        for turn in range(per_model):
            group, number = divmod(turn, SIZE)
            batch = [attempt(model, f"g{group}", number, OWN_TOKENS, rng) for model in models]
            batch += [attempt("other", f"o{turn}", n, OTHER_TOKENS, rng) for n in range(OTHERS)]
            for record in batch:
                producer.send(LABELED_TRAJECTORIES, f"{record['model']}/{record['group_id']}", record)
            records += len(batch)
            producer.poll()
        producer.flush()
    return records


def times_of_updates(settings: Settings, model: str) -> list[int]:
    """Return the times of a model's updates, in microseconds."""
    with closing(Codec(settings)) as codec, EventConsumer(settings.kafka, codec) as consumer:
        consumer.follow([LEARNER_UPDATES])
        found: list[int] = []
        while not consumer.is_caught_up():
            records = [event.record for event in consumer.poll(500, 0.2) if event.record]
            found += [record["occurred_at_us"] for record in records if record["model"] == model]
    return sorted(found)


def rate(settings: Settings, folder: Path, root: Path, model: str, reader: str, updates: int) -> float:
    """Run one learner; return its updates per second."""
    learner: dict[str, Any] = {
        "model": model,
        "reader": reader,
        "preset": "tiny",
        "checkpoints": str(folder / "checkpoints"),
        "group_size": SIZE,
        "groups_per_update": GROUPS,
        "updates_per_checkpoint": updates,
        "staleness_bound": 10**6,
        "minibatches": 1,
        "read_ahead_mb": 8,
    }
    own = settings.model_copy(update={"learner": type(settings.learner).model_validate(learner)})
    publish_root(own, root, model, from_start=True)
    environment = os.environ | environment_of(own) | {"STEPSTREAM_METRICS_PORT": "0", "OMP_NUM_THREADS": "1"}
    with (folder / "learner.log").open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "stepstream.learner"], env=environment, stdout=sink, stderr=sink
        )
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(found := times_of_updates(own, model)) < updates:
            if process.poll() is not None or time.monotonic() > deadline_s:
                log = (folder / "learner.log").read_text()[-2000:]
                raise SystemExit(f"{model} made {len(found)} of {updates} updates:\n{log}")
            time.sleep(0.5)
    finally:
        process.terminate()
        process.wait()
    return (updates - 1) / ((found[-1] - found[0]) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn of each, fewer updates")
    arguments = parser.parse_args()
    turns, updates = (1, 12) if arguments.quick else (3, 24)
    runs = [(f"m{turn}-{reader}", reader) for turn in range(turns) for reader in ("thread", "process")]
    rates: dict[str, list[float]] = {"thread": [], "process": []}
    with tempfile.TemporaryDirectory(prefix="stepstream-bench-") as name:
        folder = Path(name)
        tokenizer = build_tokenizer(MAX_LENGTH)
        tokenizer.save_pretrained(folder / "root")
        build_model(tokenizer, 0).save_pretrained(folder / "root")
        with Stack(isolated(load({}), folder), ["broker", "registry"]) as stack:
            records = fill(stack.settings, [model for model, _ in runs], updates)
            for model, reader in runs:
                rates[reader].append(rate(stack.settings, folder, folder / "root", model, reader, updates))
                print(f"  {model}: {rates[reader][-1]:.2f} updates/s", file=sys.stderr)
    print(f"\n{records:,} records, {updates} updates a run\n\n| reader | updates per s | range |\n|---|---|---|")
    for reader, found in rates.items():
        print(f"| {reader} | {statistics.median(found):.2f} | {min(found):.2f} to {max(found):.2f} |")
    medians = {reader: statistics.median(found) for reader, found in rates.items()}
    figures = {f"updates_per_s_{reader}": round(each, 3) for reader, each in medians.items()}
    print(json.dumps({"ratio_process_to_thread": round(medians["process"] / medians["thread"], 3), **figures}))


if __name__ == "__main__":
    main()
