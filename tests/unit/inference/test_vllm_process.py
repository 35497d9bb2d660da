"""Test how settings reach vLLM's command line, without vLLM."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepstream.config import InferenceSettings
from stepstream.services.inference import vllm_process
from stepstream.services.inference.vllm_process import VllmProcess


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({}, {("--tool-call-parser", "call_line"), ("--max-model-len", "auto")}),
        ({"tool_parser": "hermes"}, {("--tool-call-parser", "hermes")}),
        ({"reasoning_parser": "qwen3"}, {("--reasoning-parser", "qwen3")}),
        ({"max_model_len": 512, "max_batch": 3}, {("--max-model-len", "512"), ("--max-num-seqs", "3")}),
        ({"lora_rank": 8, "max_adapters": 2}, {("--max-lora-rank", "8"), ("--max-loras", "2")}),
        ({"vllm_args": ["--seed", "5"]}, {("--seed", "5")}),
    ],
)
async def test_settings_are_arguments(fields: dict[str, Any], arguments: set[tuple[str, str]]) -> None:
    process = VllmProcess(InferenceSettings(engine="vllm", model="m", **fields))
    command = process._command(Path("/versions/7"), 7)
    await process.close()
    fixed = {
        ("--model", "/versions/7"),
        ("--generation-config", "vllm"),
        ("--logprobs-mode", "processed_logprobs"),
        ("--additional-config", '{"stepstream":{"version":7}}'),
    }
    assert arguments | fixed <= set(pairwise(command))
    assert ("--reasoning-parser" in command, "--enable-lora" in command) == (
        "reasoning_parser" in fields,
        "lora_rank" in fields,
    )


@pytest.mark.parametrize("is_cpu", [True, False])
async def test_a_cpu_computes_in_the_process_that_schedules(monkeypatch: pytest.MonkeyPatch, is_cpu: bool) -> None:
    monkeypatch.setattr(vllm_process, "_on_cpu", lambda: is_cpu)
    process = VllmProcess(InferenceSettings(engine="vllm", model="m", vllm_args=["--seed", "5"]))
    command = process._command(Path("/versions/7"), 7)
    await process.close()
    executors = [value for name, value in pairwise(command) if name == "--distributed-executor-backend"]
    assert [executor.rpartition(".")[2] for executor in executors] == ["UniProcExecutor"] * is_cpu
    assert command[-2:] == ["--seed", "5"]  # an argument of the user's comes later and so takes precedence
