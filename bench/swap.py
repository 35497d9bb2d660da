"""Measure a new version's way into a serving vLLM worker: seconds to its first token, and the gaps of running streams.

Run it as `.venv/bin/python bench/swap.py [--quick] [--sizes NAME,NAME] [--rounds N]`. Streams run all the time. The
event is at hand when the clock starts; fetching (with digests), checks and swap follow, then a request for one token.
The ways: `file` from the page cache, `cold file` after its pages are dropped, `memory` from /dev/shm, `delta` as the
difference of a step from the version before, `lora` as adapter beside the base. Beside them stand a restart of vLLM on
the same version, and the times in which this machine reads the bytes from disk, copies them in memory and digests them,
measured in the same run.
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
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from stepstream.config import InferenceSettings
from stepstream.learner.model.checkpoint import describe, write_root
from stepstream.learner.tiny.model import build_tokenizer
from stepstream.services.inference.engine import SamplingParams
from stepstream.services.inference.vllm_engine import VllmEngine
from stepstream.topics.events import Checkpoint, new_checkpoint
from stepstream.versions.delta import write_delta
from stepstream.versions.fetch import fetch_version
from stepstream.versions.store import local_path

SIZES = {
    # hidden, layers, heads, key heads, feed-forward
    "1M": (96, 2, 3, 3, 288),
    "25M": (512, 8, 8, 4, 1408),
    "100M": (768, 14, 12, 4, 2048),
    "350M": (1024, 28, 16, 8, 3072),
}
STREAMS, LENGTH, PROMPT = 4, 1024, [1, 30, 81, 14, 76, 16, 99]


@dataclass
class Gaps:
    """Times of the tokens of all running streams."""

    tokens: list[list[float]] = field(default_factory=list)

    def p99_ms(self, start: float, end: float) -> float:
        """Return the 99th percentile of the gaps that touch a period, in milliseconds."""
        gaps = [
            later - earlier
            for times in self.tokens
            for earlier, later in itertools.pairwise(times)
            if later >= start and earlier <= end
        ]
        return 1000 * float(np.percentile(gaps, 99)) if gaps else 0.0


def make_version(size: str, seed: int, folder: Path) -> Checkpoint:
    """Write a random model of a size as a version and return its event."""
    hidden, layers, heads, key_heads, inner = SIZES[size]
    tokenizer = build_tokenizer(LENGTH)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer) if size == "1M" else 32000, hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, intermediate_size=inner,
        max_position_embeddings=LENGTH, bos_token_id=1, eos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        files = write_root(Path(scratch), folder)
    return new_checkpoint(
        event_id=f"{size}-{seed}", occurred_at_us=0, model="bench", version=seed, uri=folder.as_uri(), files=files,
        weights_sha256="", code_version="bench",
    )  # fmt: skip


def make_delta(base: Checkpoint, folder: Path) -> Checkpoint:
    """Write a version whose weights are those of `base` after a step of 1e-5, as the difference of both."""
    weights = local_path(base["uri"])
    assert weights is not None
    with tempfile.TemporaryDirectory() as scratch:
        stepped = Path(shutil.copytree(weights / "weights", Path(scratch) / "weights"))
        for file in stepped.glob("*.safetensors"):
            tensors = {
                name: tensor + 1e-5 * torch.randn_like(tensor).sign() for name, tensor in load_file(file).items()
            }
            save_file(tensors, file, {"format": "pt"})
        shutil.copytree(stepped, folder / "weights", ignore=shutil.ignore_patterns("*.safetensors*"))
        if not write_delta(stepped, weights / "weights", folder / "weights"):
            raise RuntimeError(f"{stepped} and {weights} have other tensors")
    return new_checkpoint(
        event_id=f"{base['event_id']}-delta", occurred_at_us=0, model="bench", version=3, uri=folder.as_uri(),
        files=describe(folder), weights_sha256="", code_version="bench", format="delta", base_version=base["version"],
    )  # fmt: skip


def make_adapters(base: Path, folder: Path) -> Path:
    """Write random adapters of rank 16 for all projections."""
    torch.set_default_dtype(torch.float32)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=16, target_modules="all-linear"))
    model.save_pretrained(str(folder))
    return folder


@asynccontextmanager
async def streams(engine: VllmEngine) -> AsyncIterator[Gaps]:
    """Keep streams running; their tokens' times are collected."""
    gaps, stop = Gaps(), asyncio.Event()

    async def run(seed: int) -> None:
        while not stop.is_set():
            times: list[float] = []
            gaps.tokens.append(times)
            params = SamplingParams(max_tokens=LENGTH - 100, temperature=1.0, seed=seed, stream=True)
            async for _ in engine.generate(PROMPT, params):
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


async def measure_swap(
    engine: VllmEngine, gaps: Gaps, checkpoint: Checkpoint, version: int, base: Checkpoint | None = None
) -> dict[str, float]:
    """Take one version in and return the seconds to its first token and the gaps meanwhile; `base`: of a delta."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="swap-bench-") as cache:
        folder = await asyncio.to_thread(fetch_version, checkpoint, lambda _model, _version: base, Path(cache))
        fetched = time.perf_counter()
        await engine.load(folder, version)
        await first_token(engine)
        end = time.perf_counter()
    await asyncio.sleep(0.5)  # the gaps that the swap made end with a token
    return {"seconds": end - start, "fetch_s": fetched - start, "p99_ms": gaps.p99_ms(start, end)}


async def measure_adapter(engine: VllmEngine, gaps: Gaps, folder: Path, version: int) -> dict[str, float]:
    start = time.perf_counter()
    await engine.load_adapter(folder, version)
    body = {"model": engine.served_name(version), "token_ids": PROMPT, "sampling_params": {"max_tokens": 1}}
    async with engine.post("/inference/v1/generate", json.dumps(body).encode()) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
    end = time.perf_counter()
    await engine.unload_adapter(version)
    await asyncio.sleep(0.2)
    return {"seconds": end - start, "fetch_s": 0.0, "p99_ms": gaps.p99_ms(start, end)}


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


async def measure_size(size: str, rounds: int, base: Path) -> dict[str, Any]:
    """Measure all ways at one size."""
    versions = [make_version(size, seed, base / f"v{seed}") for seed in (1, 2)]
    folders = [base / f"v{seed}" / "weights" for seed in (1, 2)]
    weights = sorted(folders[1].glob("*.safetensors"))
    shared = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="swap-bench-"))
    engine = VllmEngine(settings())
    try:
        in_memory = []
        for checkpoint in versions:
            folder = shutil.copytree(base / f"v{checkpoint['version']}", shared / str(checkpoint["version"]))
            in_memory.append(checkpoint | {"uri": folder.as_uri()})
        delta = make_delta(versions[0], base / "delta")
        adapters = make_adapters(folders[0], base / "adapters")
        started = time.perf_counter()
        await engine.load(folders[0], 1)
        await first_token(engine)
        restart = time.perf_counter() - started
        number = 1
        ways: dict[str, Any] = {}
        async with streams(engine) as gaps:
            quiet = time.perf_counter()
            await asyncio.sleep(2.0)
            ways["none"] = {"p99_ms": round(gaps.p99_ms(quiet, time.perf_counter()), 1)}
            pairs = (
                ("file", versions),
                ("cold file", versions),
                ("memory", in_memory),
                ("delta", [versions[0], delta]),
            )
            for way, given in pairs:
                measured = []
                for turn in range(rounds):
                    number += 1
                    if way == "cold file":
                        drop_pages(folders[(turn + 1) % 2].glob("*.safetensors"))
                    one = await measure_swap(engine, gaps, given[(turn + 1) % 2], number, versions[0])
                    if way != "delta" or turn % 2 == 0:
                        measured.append(one)
                ways[way] = middle(measured)
            measured = [
                await measure_adapter(engine, gaps, Path(shutil.copytree(adapters, base / f"a{turn}")), 1000 + turn)
                for turn in range(rounds)
            ]
            ways["lora"] = middle(measured)
    finally:
        await engine.close()
        shutil.rmtree(shared)
    size_mb = sum(file.stat().st_size for file in weights) / 1e6
    bounds = {name: round(value, 4) for name, value in limits(weights).items()}
    return {"megabytes": round(size_mb, 1), "restart_s": round(restart, 1), "ways": ways, "limits": bounds}


def settings() -> InferenceSettings:
    return InferenceSettings(
        engine="vllm", model="bench", tool_parser="none", max_batch=8, max_model_len=LENGTH, lora_rank=16,
        max_adapters=2,
    )  # fmt: skip


def print_table(size: str, result: dict[str, Any]) -> None:
    print(f"\n{size} parameters, {result['megabytes']} MB in bfloat16, {STREAMS} streams running")
    print(f"{'way':<12}{'event to first token':>22}{'of it fetch':>14}{'p99 between tokens':>20}")
    for way, figures in result["ways"].items():
        seconds = f"{figures['seconds']:.3f} s" if "seconds" in figures else "-"
        fetch = f"{figures['fetch_s']:.3f} s" if "fetch_s" in figures else "-"
        print(f"{way:<12}{seconds:>22}{fetch:>14}{figures['p99_ms']:>17.0f} ms")
    print(f"{'restart':<12}{result['restart_s']:>20.1f} s")
    for name, seconds in result["limits"].items():
        print(f"{'limit ' + name[:-2]:<12}{seconds:>20.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the smallest size, 2 rounds")
    parser.add_argument("--sizes", default="1M,25M,100M", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names = ["1M"] if arguments.quick else arguments.sizes.split(",")
    results = {}
    for size in names:
        with tempfile.TemporaryDirectory(prefix="swap-bench-") as base:
            results[size] = asyncio.run(measure_size(size, 2 if arguments.quick else arguments.rounds, Path(base)))
        print_table(size, results[size])
    print(json.dumps({"cores": os.cpu_count(), "streams": STREAMS, "sizes": results}))


if __name__ == "__main__":
    main()
