"""Measure a new version's path into a serving vLLM worker: seconds to its first token, and the gaps of running streams.

Run it as `.venv/bin/python bench/swap.py [--quick] [--sizes NAME,NAME] [--rounds N]`. Streams run all the time. The
event is at hand when the clock starts; the worker's own fetch (with digests), checks and swap follow, then a request
for one token. The ways:

    file        files on a local disk, in the page cache
    cold file   the same after their pages are dropped
    store       the same by the client of a store (fsspec), from the local disk: a download without a network
    memory      the copy that the learner shares; the store is not read
    delta       the difference of a step from the version before
    lora        adapters beside the base

Beside them are a restart of vLLM on the same version, and the times in which this machine reads the bytes from disk,
copies them in memory and digests them, measured in the same run.
"""

import argparse
import asyncio
import hashlib
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from stepstream.config import InferenceSettings, PathsSettings, Settings
from stepstream.demo import smollm2
from stepstream.learner.model.checkpoint import describe, write_root
from stepstream.learner.tiny.model import build_tokenizer
from stepstream.services.inference.engine import SamplingParams
from stepstream.services.inference.version_source import VersionFiles, VersionSource
from stepstream.services.inference.vllm_engine import VllmEngine
from stepstream.topics.events import Checkpoint, new_checkpoint
from stepstream.versions.delta import write_delta
from stepstream.versions.layout import weights_sha256
from stepstream.versions.shared_memory import SharedVersions

SIZES = {
    # hidden, layers, heads, key heads, feed-forward, vocabulary
    "1M": (96, 2, 3, 3, 288, 100),
    "25M": (512, 8, 8, 4, 1408, 32000),
    "100M": (768, 14, 12, 4, 2048, 32000),
    "0.5B": (896, 24, 14, 2, 4864, 151936),
}
"""Random weights in bfloat16; the last has the shape of Qwen2.5-0.5B. `SMOLLM2` has its own weights in float32."""
SMOLLM2 = "SmolLM2-135M"
SHARED_BYTES = 8 << 30
STREAMS, LENGTH, PROMPT = 4, 1024, [1, 30, 81, 14, 76, 16, 99]


@dataclass
class Gaps:
    """Times of the tokens of all running streams."""

    tokens: list[list[float]] = field(default_factory=list)

    def of_period(self, start: float, end: float) -> dict[str, float]:
        """Return the 99th percentile and the longest of the gaps that touch a period, in milliseconds."""
        gaps = [
            later - earlier
            for times in self.tokens
            for earlier, later in itertools.pairwise(times)
            if later >= start and earlier <= end
        ]
        p99, longest = np.percentile(gaps, (99, 100)) if gaps else (0.0, 0.0)
        return {"p99_ms": 1000 * float(p99), "longest_ms": 1000 * float(longest)}


def make_model(size: str, folder: Path) -> None:
    """Write a model of a size in Hugging Face form."""
    if size == SMOLLM2:
        shutil.copytree(smollm2.prepare(Settings(paths=PathsSettings(data=folder / "data"))), folder / "model")
        return
    hidden, layers, heads, key_heads, inner, vocabulary = SIZES[size]
    tokenizer = build_tokenizer(LENGTH)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=max(vocabulary, len(tokenizer)), hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, intermediate_size=inner,
        max_position_embeddings=LENGTH, bos_token_id=1, eos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


def step(weights: Path) -> None:
    """Change each weight below a folder as a step of training with the rate 1e-5 does."""
    for file in weights.glob("*.safetensors"):
        tensors = {name: tensor + 1e-5 * torch.randn_like(tensor).sign() for name, tensor in load_file(file).items()}
        save_file(tensors, file, {"format": "pt"})


def event(version: int, folder: Path, **fields: Any) -> Checkpoint:
    """Return the event of a version's folder."""
    files = describe(folder)
    return new_checkpoint(
        event_id=f"0197-{version:012d}", occurred_at_us=0, model="bench", version=version, uri=folder.as_uri(),
        files=files, weights_sha256=weights_sha256(files), code_version="bench", **fields,
    )  # fmt: skip


class Published:
    """The versions of one size: 1 and 2 in full, 3 as 2's delta from 1, 4 as adapters of 1."""

    def __init__(self, size: str, base: Path) -> None:
        make_model(size, base)
        write_root(base / "model", base / "1")
        shutil.copytree(base / "1", base / "2")
        step(base / "2/weights")
        (base / "3/weights").mkdir(parents=True)
        shutil.copytree(
            base / "2/weights", base / "3/weights", ignore=shutil.ignore_patterns("*.safetensors*"), dirs_exist_ok=True
        )
        if not write_delta(base / "2/weights", base / "1/weights", base / "3/weights"):
            raise RuntimeError(f"{base}/2 and {base}/1 have other tensors")
        make_adapters(base / "1/weights", base / "4/weights/adapter")
        self.base = base
        self.full = [event(1, base / "1"), event(2, base / "2")]
        self.delta = event(3, base / "3", format="delta", base_version=1)
        self.lora = event(4, base / "4", format="lora", base_version=1)
        self.weights = sorted((base / "2/weights").glob("*.safetensors"))

    def find(self, _model: str, version: int) -> Checkpoint:
        return self.full[version - 1]


def make_adapters(base: Path, folder: Path) -> None:
    """Write random adapters of rank 16 for all projections."""
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), LoraConfig(r=16, target_modules="all-linear")
    )
    model.save_pretrained(str(folder))


@asynccontextmanager
async def streams(engine: VllmEngine) -> AsyncIterator[Gaps]:
    """Keep new streams running; their tokens' times are collected.

    Each swap gets new ones: a swap computes the contexts of running requests anew, so that it takes the longer the more
    tokens they have.
    """
    gaps, stop = Gaps(), asyncio.Event()

    async def run(seed: int) -> None:
        while not stop.is_set():
            times: list[float] = []
            gaps.tokens.append(times)
            params = SamplingParams(max_tokens=LENGTH - 100, temperature=1.0, seed=seed, stream=True)
            async with aclosing(engine.generate(PROMPT, params)) as tokens:
                async for _ in tokens:
                    times.append(time.perf_counter())
                    if stop.is_set():
                        break

    tasks = [asyncio.create_task(run(seed)) for seed in range(STREAMS)]
    while sum(map(len, gaps.tokens)) < 20 * STREAMS:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    yield gaps
    stop.set()
    await asyncio.gather(*tasks)


async def first_token(engine: VllmEngine) -> None:
    async for _ in engine.generate(PROMPT, SamplingParams(max_tokens=1, temperature=0.0)):
        pass


@dataclass
class Bench:
    """A serving engine, and the worker's source of versions."""

    published: Published
    engine: VllmEngine
    memory: Path
    number: int = 1

    async def swap(self, way: str, checkpoint: Checkpoint) -> dict[str, float]:
        """Take one version in while streams run; return the seconds to its first token and the gaps meanwhile."""
        async with streams(self.engine) as gaps:
            return await self._swap(way, checkpoint, gaps)

    async def _swap(self, way: str, checkpoint: Checkpoint, gaps: Gaps) -> dict[str, float]:
        source, shared = self._source(way), SharedVersions(self.memory, "bench", SHARED_BYTES)
        if way == "memory":
            shared.put(checkpoint["version"], checkpoint["event_id"], self._folder(checkpoint) / "weights")
        elif way == "store":
            checkpoint = checkpoint | {"uri": checkpoint["uri"].replace("file://", "local://")}
        elif way == "cold file":
            drop_pages((self._folder(checkpoint) / "weights").glob("*.safetensors"))
        self.number += 1
        start = time.perf_counter()
        files = await asyncio.to_thread(source.fetch, checkpoint)
        fetched = time.perf_counter()
        if files.adapter is None:
            await self.engine.load(files.weights, self.number)
            await first_token(self.engine)
        else:
            await self.engine.load_adapter(files.adapter, self.number)
            await self._first_adapter_token()
        end = time.perf_counter()
        assert files.weights.is_relative_to(self.memory) == (way == "memory"), files
        if files.adapter is not None:
            await self.engine.unload_adapter(self.number)
        await asyncio.sleep(0.5)  # the gaps that the swap made end with a token
        shared.close()
        return {"seconds": end - start, "fetch_s": fetched - start, **gaps.of_period(start, end)}

    def _source(self, way: str) -> VersionSource:
        """Return a worker's source, without what it fetched before."""
        data = self.published.base / f"worker-{self.number}"
        settings = Settings(paths=PathsSettings(data=data, shared_memory=self.memory))
        source = VersionSource(settings, self.published.find, serves_adapters=way == "lora")
        base = self.published.full[0]
        source.hold("stable", VersionFiles(self._folder(base) / "weights", None, base["event_id"]))
        return source

    def _folder(self, checkpoint: Checkpoint) -> Path:
        return self.published.base / str(checkpoint["version"])

    async def _first_adapter_token(self) -> None:
        name = self.engine.served_name(self.number)
        body = {"model": name, "token_ids": PROMPT, "sampling_params": {"max_tokens": 1}}
        async with self.engine.post("/inference/v1/generate", json.dumps(body).encode()) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()


def drop_pages(files: Iterable[Path]) -> None:
    """Drop files from the page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def limits(files: list[Path]) -> dict[str, float]:
    """Return the seconds in which this machine reads, copies and digests the files."""
    drop_pages(files)
    start = time.perf_counter()
    parts = [np.fromfile(file, np.uint8) for file in files]
    read = time.perf_counter()
    copies = [part.copy() for part in parts]
    copied = time.perf_counter()
    for part in copies:
        hashlib.sha256(part.data)
    return {"disk_s": read - start, "copy_s": copied - read, "sha256_s": time.perf_counter() - copied}


def middle(measured: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: round(statistics.median(one[name] for one in measured), 4) for name in measured[0]}


async def measure_size(size: str, rounds: int, base: Path, *, quick: bool) -> dict[str, Any]:
    """Measure all ways at one size, and a restart; `quick`: the first start, with code from the disk."""
    published = await asyncio.to_thread(Published, size, base)
    memory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="swap-bench-"))
    first = published.base / "1/weights"
    ways: dict[str, Any] = {}
    engine = VllmEngine(settings())
    try:
        restart = await measure_start(engine, first)
        async with streams(engine) as gaps:
            quiet = time.perf_counter()
            await asyncio.sleep(2.0)
            ways["none"] = middle([gaps.of_period(quiet, time.perf_counter())])
        bench = Bench(published, engine, memory)
        for way in ("file", "cold file", "store", "memory", "delta", "lora"):
            given = {"delta": [published.delta], "lora": [published.lora]}.get(way, published.full)
            measured = [await bench.swap(way, given[(turn + 1) % len(given)]) for turn in range(rounds)]
            ways[way] = middle(measured)
    finally:
        await engine.close()
        shutil.rmtree(memory)
    megabytes = sum(file.stat().st_size for file in published.weights) / 1e6
    bounds = {name: round(value, 4) for name, value in limits(published.weights).items()}
    if not quick:
        again = VllmEngine(settings())
        try:
            restart = await measure_start(again, first)
        finally:
            await again.close()
    return {"megabytes": round(megabytes, 1), "restart_s": round(restart, 1), "ways": ways, "limits": bounds}


async def measure_start(engine: VllmEngine, folder: Path) -> float:
    """Return the seconds from the start of vLLM to its first token."""
    started = time.perf_counter()
    await engine.load(folder, 1)
    await first_token(engine)
    return time.perf_counter() - started


def settings() -> InferenceSettings:
    return InferenceSettings(
        engine="vllm", model="bench", tool_parser="none", max_batch=8, max_model_len=LENGTH, lora_rank=16,
        max_adapters=2,
    )  # fmt: skip


def print_table(size: str, result: dict[str, Any]) -> None:
    print(f"\n{size}: {result['megabytes']} MB, {STREAMS} streams running")
    print(f"{'way':<12}{'event to first token':>22}{'of it fetch':>14}{'p99 between tokens':>20}{'longest':>10}")
    for way, figures in result["ways"].items():
        seconds = f"{figures['seconds']:.3f} s" if "seconds" in figures else "-"
        fetch = f"{figures['fetch_s']:.3f} s" if "fetch_s" in figures else "-"
        print(f"{way:<12}{seconds:>22}{fetch:>14}{figures['p99_ms']:>17.0f} ms{figures['longest_ms']:>7.0f} ms")
    print(f"{'restart':<12}{result['restart_s']:>20.1f} s")
    for name, seconds in result["limits"].items():
        print(f"{'limit ' + name[:-2]:<12}{seconds:>20.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the smallest size, 1 round")
    parser.add_argument("--sizes", default=f"1M,{SMOLLM2},0.5B", help=f"of {', '.join([SMOLLM2, *SIZES])}")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    names, rounds = (["1M"], 1) if arguments.quick else (arguments.sizes.split(","), arguments.rounds)
    results = {}
    for size in names:
        with tempfile.TemporaryDirectory(prefix="swap-bench-") as base:
            results[size] = asyncio.run(measure_size(size, rounds, Path(base), quick=arguments.quick))
        print_table(size, results[size])
    print(json.dumps({"cores": os.cpu_count(), "streams": STREAMS, "sizes": results}))


if __name__ == "__main__":
    main()
