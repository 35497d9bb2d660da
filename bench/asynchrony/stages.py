"""Measure the duration of each stage of the loop, here or in runs of the real stack; stages.json keeps them."""

import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from in_process import Conversation, Policy, Renderer, play
from in_process.generating import MAX_TOKENS
from in_process.runs import Run

from stepstream.config import Settings
from stepstream.services.fleet.environment import load_environment
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.continuous_batch import Batch, Generation
from stepstream.services.inference.llama import LlamaWeights

FILE = Path(__file__).with_name("stages.json")
ROWS, CONTEXT = 96, 256
CARRIERS = ("fleet", "gateway", "govern", "label")
"""Processes that each step passes; the others work in parallel."""
LABEL_WAIT_S = 0.06
"""Median latency of govern and label at low load (docs/measured/stream.md), plus half of the reader's poll."""
ANNOUNCE_S = 0.1
"""Mean wait of a checkpoint watcher: half of its poll interval of 0.2 s."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Stage times in CPU seconds of one core; the waits are in seconds of time."""

    decode_s: float
    """Constant part of a decoding step of the engine."""
    decode_row_s: float
    """Part of a decoding step for each row."""
    prefill_token_s: float
    """One token of a prompt."""
    call_s: float
    """One call at the worker without the model: HTTP, template, sampling of the first token."""
    swap_s: float
    """Loading a version's weights and swapping them."""
    recompute_row_s: float
    """Recomputing the context of each running row after a swap."""
    update_token_s: float
    """One trained token of an update."""
    read_s: float
    """Decoding one labelled trajectory at the learner."""
    publish_s: float
    """One version: files, digests, event."""
    label_wait_s: float
    """From a trajectory's last step to its label at the learner, on idle processes."""
    announce_wait_s: float
    """From a published version to worker and agents, on idle processes."""
    plumbing: dict[str, float]
    """One step at each process: fleet, gateway, govern, label, and `rest` for the others."""


def read_stages(file: Path = FILE) -> Stages:
    """Read the stages of a file."""
    return Stages(**json.loads(file.read_text())["stages"])


def digest(file: Path = FILE) -> str:
    """Return a digest of a file's stages, which separates runs on different stages."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:8]


def least(work: Callable[[], object], times: int = 5) -> float:
    """Return the CPU seconds of the quickest of several tries, since other load only adds."""
    seconds = []
    for _ in range(times):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope of the least-squares line, each at least 0."""
    count = len(points)
    x, y = sum(p[0] for p in points) / count, sum(p[1] for p in points) / count
    slope = sum((p[0] - x) * (p[1] - y) for p in points) / max(1e-12, sum((p[0] - x) ** 2 for p in points))
    slope = max(0.0, slope)
    return max(0.0, y - slope * x), slope


def measure_model(settings: Settings, base: Path) -> dict[str, float]:
    """Measure in this process the stages that depend on the model, and `step_s`, the engine's share of a step."""
    torch.set_num_threads(1)
    weights = LlamaWeights(base)
    renderer = Renderer(ChatTokenizer(base), load_environment(settings.fleet.environment))
    policy = Policy(settings, base)
    batch = Batch(weights, 0, ROWS, CONTEXT)
    updates, reads = [], []
    for number, task in enumerate(islice(renderer.environment.tasks(0, "train"), 96)):
        names = [f"{number}/{i}" for i in range(settings.fleet.group_size)]
        group = [Conversation(task, f"g{number}", name, 0, renderer) for name in names]
        play(batch, group)
        reads.append(least(lambda group=group: policy.read(group), 1) / len(group))  # type: ignore[misc]
        if policy.buffer.has(policy.config.groups_per_update):
            updates.append(least(policy.update, 1) / policy.figures[-1]["tokens"])
    many = _beginners(renderer, 2 * ROWS)
    step_s = least(lambda: play(batch, many), 1) / sum(len(conversation.responses) for conversation in many)
    contexts = [conversation.prompt for conversation in _beginners(renderer, ROWS)]
    filled = least(lambda: _joined(weights, contexts, renderer))
    with tempfile.TemporaryDirectory() as folder:
        publish_s = least(lambda: policy.trainer.snapshot().write(Path(folder)))
        swap_s = least(lambda: LlamaWeights(Path(folder)))
    decode_s, decode_row_s = line([(float(rows), _decoding(weights, rows, renderer)) for rows in (1, 16, 48, ROWS)])
    return {
        "decode_s": decode_s,
        "decode_row_s": decode_row_s,
        "prefill_token_s": filled / sum(map(len, contexts)),
        "recompute_row_s": filled / len(contexts),
        "swap_s": swap_s,
        "update_token_s": min(updates),
        "read_s": min(reads),
        "publish_s": publish_s,
        "step_s": step_s,
    }


def measure_stack(model: dict[str, float], runs: Sequence[Run]) -> Stages:
    """Return all stages: the model's, and median CPU seconds a step of each process in real runs.

    Raises:
        ValueError: No run has CPU seconds.
    """
    runs = [run for run in runs if run.get("cpu_s")]
    if not runs:
        raise ValueError("no real runs: run `bench/async.py --part real` first")

    def a_step(*names: str) -> float:
        return float(statistics.median(sum(run["cpu_s"].get(n, 0.0) for n in names) / run["steps"] for run in runs))

    carriers = {name: a_step(name) for name in CARRIERS}
    others = {name for run in runs for name in run["cpu_s"]} - {*CARRIERS, "learner", "worker-0"}
    in_engine = model.pop("step_s")
    return Stages(
        **model,
        call_s=max(0.0, a_step("worker-0") - in_engine),
        label_wait_s=LABEL_WAIT_S,
        announce_wait_s=ANNOUNCE_S,
        plumbing={**carriers, "rest": a_step(*others)},
    )


def _beginners(renderer: Renderer, count: int) -> list[Conversation]:
    tasks = islice(renderer.environment.tasks(0, "train"), count)
    return [Conversation(task, "", str(number), 0, renderer) for number, task in enumerate(tasks)]


def _joined(weights: LlamaWeights, contexts: Sequence[Sequence[int]], renderer: Renderer) -> Batch:
    batch = Batch(weights, 0, len(contexts), CONTEXT)
    sampling = _beginners(renderer, 1)[0].sampling(MAX_TOKENS)
    with torch.inference_mode():
        batch.join([Generation(context, sampling, lambda chunk: None) for context in contexts])
    return batch


def _decoding(weights: LlamaWeights, rows: int, renderer: Renderer) -> float:
    """Return the CPU seconds of one decoding step of `rows` rows."""
    batch = _joined(weights, [conversation.prompt for conversation in _beginners(renderer, rows)], renderer)
    assert batch.running == rows, "the base model's first token ends no response"
    with torch.inference_mode():
        return least(batch.step, 4)
