"""Test which checkpoints the torch engine loads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import tiny_of
from transformers import AutoConfig

from stepstream.services.inference.engine import CheckpointRefusedError, EngineError
from stepstream.services.inference.llama import Llama, LlamaWeights
from stepstream.services.inference.torch_engine import TorchEngine


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


def test_every_tensor_is_on_the_weights_device(tmp_path: Path) -> None:
    """On torch's device without memory an operation with a tensor of the CPU is an error."""
    weights = LlamaWeights(tiny_of("llama", tmp_path), "meta")
    llama = Llama(weights, 2, 8)
    tokens = torch.ones(2, 4, dtype=torch.long, device="meta")
    logits = llama.prefill(0, tokens, tokens[:, 0])
    assert (logits.device.type, logits.shape[0]) == ("meta", 2)
    assert llama.decode(tokens[:, 0], tokens[:, 0], 5).device.type == "meta"
    assert llama.cache.keys.device.type == "meta"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
async def test_a_device_that_the_machine_lacks_is_named() -> None:
    with pytest.raises(EngineError, match=r"'cuda:1'.*inference\.device"):
        TorchEngine(1, 16, 1, "cuda:1")
