"""Measure the trainer's tokens per second against TRL's GRPO trainer and plain loops, on one ragged batch.

Run it as `.venv/bin/python bench/learner.py [--quick] [--device cuda]`. All sides train the same model on the same
batch of merged multi-step attempts, in the same precision, with the same number of threads: one gradient step on the
whole batch at a time. On the CPU they alternate, so other load slows all alike; on a GPU they run one after another,
each with all of its memory. TRL runs in its own environment, at the best of several microbatch sizes. Stepstream also
computes credit and figures; the others get advantages.

On the CPU everything is in float32 and rates are per CPU-second, the rate of a dedicated core. The limit is the rate of
matrix products of the model's shapes, divided by the operations that a padding-free trainer needs for this batch: 6 for
each weight and token, plus the attention. On a GPU weights are float32, products bfloat16, and rates are per second of
time; the utilisation is these operations over the peak rate of the card's data sheet.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import python_of
from training import ragged

TRL = ["trl==1.16.0", "torch==2.13.0", "transformers==5.19.0"]
SIDES = Path(__file__).with_name("training")
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Peak rates of dense matrix products in bfloat16 by the data sheets, in FLOP/s."""
MODELS = {
    # Llama sizes: hidden, layers, heads, key heads, feed-forward, vocabulary. 135M is SmolLM2's, 7B Qwen 2.5's.
    "135M": (576, 30, 9, 3, 1536, 49152),
    "0.1B": (768, 12, 12, 4, 2048, 32000),
    "0.5B": (1280, 20, 20, 4, 3456, 32000),
    "1.5B": (2048, 24, 16, 4, 5632, 32000),
    "7B": (3584, 28, 28, 4, 18944, 152064),
}


class Failed(Exception):
    """A side failed and has no figures."""


@dataclass
class Side:
    """One trainer under measurement."""

    name: str
    command: list[str]
    process: subprocess.Popen[str] = field(init=False)
    seconds: list[float] = field(default_factory=list)
    peak_mib: float = 0.0

    @contextmanager
    def running(self, folder: Path, threads: int) -> Iterator[None]:
        """Run the side as a process."""
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        with (folder / f"{self.name}.log").open("wb") as sink:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, env=environment, text=True
            )
        with self.process:
            yield
            assert self.process.stdin is not None
            self.process.stdin.close()

    def turn(self, steps: int) -> dict[str, float]:
        """Train this many steps; return its seconds and peak memory."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line.startswith("{"):
            raise Failed(f"{self.name} failed: {line or 'its process ended'}")
        figures: dict[str, float] = json.loads(line)
        return figures


def write_model(folder: Path, name: str, device: str) -> tuple[int, Any]:
    """Save the model to train, with random weights; return its vocabulary and configuration."""
    from stepstream.learner.tiny.model import MAX_LENGTH, build_model, build_tokenizer

    tokenizer = build_tokenizer(MAX_LENGTH)
    tokenizer.save_pretrained(folder)
    if name == "tiny":
        model: Any = build_model(tokenizer, 0)
    else:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        # A large model is drawn on the GPU, which is faster, and saved in half the bytes.
        torch.set_default_device(device)
        torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
        hidden, layers, heads, key_heads, wide, vocabulary = MODELS[name]
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocabulary,
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=key_heads,
                intermediate_size=wide,
                max_position_embeddings=16384,
                tie_word_embeddings=True,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
        torch.set_default_device("cpu")
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    return model.config.vocab_size, model.config


def operations(config: Any, rows: list[ragged.Row], *, share: bool, frozen: bool = False) -> float:
    """Return the floating-point multiplications and additions of one gradient step without padding.

    Args:
        config: Configuration of the model.
        rows: The batch.
        share: Count each group's prompt once.
        frozen: The weights get no gradients, as below adapters, whose own operations are left out.
    """
    by_weight = 4 if frozen else 6
    hidden, size = config.hidden_size, config.hidden_size // config.num_attention_heads
    attention = 2 * hidden * hidden + 2 * hidden * config.num_key_value_heads * size
    layer = attention + 3 * hidden * config.intermediate_size
    total, seen = 0.0, set()
    for row in rows:
        inputs, start = row.ids.size - 1, 0
        if share and row.group in seen:
            start = row.prompt
        seen.add(row.group)
        scores = (inputs * (inputs + 1) - start * (start + 1)) / 2
        total += config.num_hidden_layers * (by_weight * layer * (inputs - start) + 12 * hidden * scores)
        total += by_weight * hidden * config.vocab_size * row.steps.size
    return total


def product_rate(config: Any, device: str, threads: int) -> float:
    """Return the operations per second of matrix products of the model's shapes; on the CPU per CPU-second."""
    import torch

    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rates = []
    for wide in (config.hidden_size, config.intermediate_size):
        a = torch.randn(2048, config.hidden_size, device=device, dtype=dtype)
        b = torch.randn(config.hidden_size, wide, device=device, dtype=dtype)
        clock = time.perf_counter if device == "cuda" else time.process_time
        best = float("inf")
        for _ in range(30):
            began = clock()
            for _ in range(10):
                a @ b
            if device == "cuda":
                torch.cuda.synchronize()
            best = min(best, (clock() - began) / 10)
        rates.append(2 * 2048 * config.hidden_size * wide / best)
    return float(statistics.mean(rates))


def sides(folder: Path, arguments: argparse.Namespace) -> list[Side]:
    """Return all sides of the comparison."""
    python = sys.executable
    common = [str(folder), arguments.device, str(arguments.threads)]
    settings: dict[str, Any] = {
        "activation_checkpointing": arguments.activation_checkpointing,
        "lora_rank": arguments.lora_rank,
    }
    if arguments.device == "cuda":
        settings |= {"precision": "bfloat16", "compile": arguments.compile}
    microbatch = str(arguments.microbatch_tokens)

    def stepstream(**more: Any) -> list[str]:
        return [python, str(SIDES / "stepstream_trainer.py"), *common, microbatch, json.dumps(settings | more)]

    own = [Side("Stepstream", stepstream())]
    if arguments.alone:
        return own
    trl = str(python_of("trl", TRL))
    plain = [
        Side("plain loop", [python, str(SIDES / "plain.py"), *common, "1"]),
        Side("plain loop, 4 lengths", [python, str(SIDES / "plain.py"), *common, "4"]),
    ]
    return [
        *own,
        Side("Stepstream, sharing nothing", stepstream(share_nothing=True)),
        *([] if arguments.no_plain_loop else plain),
        *(
            Side(f"TRL, {sequences} at once", [trl, str(SIDES / "trl_grpo.py"), *common, str(sequences)])
            for sequences in arguments.trl_sequences
        ),
    ]


def measure_sides(all_sides: list[Side], folder: Path, arguments: argparse.Namespace) -> list[Side]:
    """Measure all sides; return those that did not fail."""
    clock = "wall_s" if arguments.device == "cuda" else "cpu_s"

    def turn(side: Side) -> None:
        figures = side.turn(arguments.steps)
        side.seconds.append(figures[clock] / arguments.steps)
        side.peak_mib = figures["peak_mib"]

    if arguments.device == "cpu":
        with ExitStack() as stack:
            for side in all_sides:
                stack.enter_context(side.running(folder, arguments.threads))
            for side in all_sides:
                side.turn(1)
            for _ in range(arguments.rounds):
                for side in all_sides:
                    turn(side)
        return all_sides
    measured = []
    for side in all_sides:
        try:
            with side.running(folder, arguments.threads):
                side.turn(1)
                for _ in range(arguments.rounds):
                    turn(side)
        except Failed as error:
            log = (folder / f"{side.name}.log").read_text(errors="replace").strip().splitlines()
            print(f"{error}: {log[-1] if log else ''}", file=sys.stderr)
        else:
            measured.append(side)
    return measured


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one model on one batch; print its table, return its figures."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        vocabulary, config = write_model(folder, name, arguments.device)
        rows = ragged.draw(ragged.SHAPES[arguments.batch], vocabulary, arguments.seed)
        ragged.save(rows, folder)
        running = measure_sides(sides(folder, arguments), folder, arguments)
        rate = product_rate(config, arguments.device, arguments.threads)
    trained, every = sum(row.steps.size for row in rows), sum(row.ids.size for row in rows)
    longest = max(row.ids.size for row in rows)
    shared = operations(config, rows, share=True, frozen=arguments.lora_rank > 0)
    print(f"\n{name}: {len(rows)} attempts, {every:,} tokens ({trained:,} trained), longest {longest:,}\n")
    print("| | trained tokens per s | range | step s | share of the limit | peak MiB |\n|---|---|---|---|---|---|")
    for side in running:
        middle = statistics.median(side.seconds)
        rates = [trained / each for each in side.seconds]
        spread, share = f"{min(rates):,.0f} to {max(rates):,.0f}", f"{shared / middle / rate:.0%}"
        print(f"| {side.name} | {trained / middle:,.0f} | {spread} | {middle:.3f} | {share} | {side.peak_mib:,.0f} |")
    print(f"| limit: {rate / 1e9:,.0f} GFLOP/s | {trained * rate / shared:,.0f} | | {shared / rate:.3f} | 100% | |")
    medians = {side.name: statistics.median(side.seconds) for side in running}
    peer = min((seconds for side, seconds in medians.items() if side.startswith("TRL")), default=float("nan"))
    plain = min((seconds for side, seconds in medians.items() if side.startswith("plain")), default=float("nan"))
    figures = {
        "ratio_to_trl": peer / medians["Stepstream"],
        "ratio_to_trl_sharing_nothing": peer / medians.get("Stepstream, sharing nothing", float("nan")),
        "ratio_to_plain": plain / medians["Stepstream"],
        "tokens_per_s": trained / medians["Stepstream"],
        "trl_tokens_per_s": trained / peer,
        "plain_tokens_per_s": trained / plain,
        "limit_tokens_per_s": trained * rate / shared,
        "share_of_limit": shared / medians["Stepstream"] / rate,
    }
    if arguments.device == "cuda":
        import torch

        card = torch.cuda.get_device_name()
        peak = next((flops for kind, flops in PEAK_FLOPS.items() if kind in card), None)
        if peak is not None:
            figures["mfu"] = shared / medians["Stepstream"] / peak
            print(f"\nutilisation of the {card}: {figures['mfu']:.1%} of {peak / 1e12:.0f} TFLOP/s")
    return {key: float(f"{value:.4g}") for key, value in figures.items() if value == value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, one size of TRL's microbatch")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each side")
    parser.add_argument(
        "--models", nargs="+", choices=["tiny", *MODELS], help="default: tiny; on a GPU 0.1B, 0.5B and 1.5B"
    )
    parser.add_argument("--batch", choices=list(ragged.SHAPES), help="default: ragged; on a GPU ragged-long")
    parser.add_argument("--microbatch-tokens", type=int, help="Stepstream only; default: 4096, on a GPU 16384")
    parser.add_argument("--trl-sequences", type=int, nargs="+", help="sizes of TRL's microbatch; the best one counts")
    parser.add_argument("--compile", action="store_true", help="Stepstream only, on a GPU: compile the layers")
    parser.add_argument("--activation-checkpointing", action="store_true", help="Stepstream only: recompute")
    parser.add_argument("--lora-rank", type=int, default=0, help="train adapters; needs --alone")
    parser.add_argument(
        "--no-plain-loop", action="store_true", help="it keeps the logits of a whole padded batch: 22 GB at 135M"
    )
    parser.add_argument("--alone", action="store_true", help="Stepstream only, for sizes that fit no peer")
    parser.add_argument("--rounds", type=int, help="turns of each side")
    parser.add_argument("--steps", type=int, help="gradient steps of a turn")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.lora_rank and not arguments.alone:
        parser.error("the peers train all weights: give --alone with --lora-rank")
    gpu = arguments.device == "cuda"
    arguments.batch = arguments.batch or ("ragged-long" if gpu else "ragged")
    arguments.microbatch_tokens = arguments.microbatch_tokens or (16384 if gpu else 4096)
    arguments.trl_sequences = arguments.trl_sequences or (
        [16] if arguments.quick else [2, 4, 8] if gpu else [8, 16, 64]
    )
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 7)
    arguments.steps = arguments.steps or (1 if arguments.quick else 3)
    models = arguments.models or (["0.1B", "0.5B", "1.5B"] if gpu else ["tiny"])
    by_model = {name: measure(name, arguments) for name in models}
    print(json.dumps(next(iter(by_model.values())) if len(by_model) == 1 else by_model))


if __name__ == "__main__":
    main()
