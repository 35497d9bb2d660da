from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import tiny_of
from transformers import AutoConfig

from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.services.inference.llama import LlamaWeights


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("qwen2", {}, "LlamaForCausalLM alone"),
        ("gpt2", {}, "LlamaForCausalLM alone"),
        ("llama", {"attention_bias": True}, "biases"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "'linear'"),
    ],
)
def test_what_the_torch_engine_does_not_run_is_sent_to_vllm(
    family: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    config = AutoConfig.from_pretrained(tiny_of(family, tmp_path))
    config.update(changes)
    config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointRefusedError, match=rf"{why}.*set inference\.engine to vllm"):
        LlamaWeights(tmp_path)


def test_weights_in_bfloat16_are_read(tmp_path: Path) -> None:
    weights = LlamaWeights(tiny_of("llama", tmp_path, torch.bfloat16))
    assert weights.embedding.dtype == torch.float32
    assert weights.shape.kv_heads == 2
