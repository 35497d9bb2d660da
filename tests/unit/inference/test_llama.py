"""Test which checkpoints the torch engine loads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import tiny_of
from transformers import AutoConfig

from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.services.inference.llama import LlamaWeights


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("qwen2", {}, "LlamaForCausalLM only"),
        ("gpt2", {}, "LlamaForCausalLM only"),
        ("llama", {"attention_bias": True}, "biases"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "'linear'"),
    ],
)
def test_the_error_for_an_unsupported_model_names_vllm(
    family: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = AutoConfig.from_pretrained(tiny_of(family, tmp_path))
    config.update(changes)
    config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointRefusedError, match=rf"{reason}.*set inference\.engine to vllm"):
        LlamaWeights(tmp_path)


def test_bfloat16_weights_become_float32(tmp_path: Path) -> None:
    weights = LlamaWeights(tiny_of("llama", tmp_path, torch.bfloat16))
    assert weights.embedding.dtype == torch.float32
    assert weights.shape.kv_heads == 2
