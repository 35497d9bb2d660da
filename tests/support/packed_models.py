"""Build untrained models with packed and with padded forward passes, and ragged sequences for them."""

from typing import Any

import numpy as np
import torch

from stepstream.learner.data.sequences import TokenSequence

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
WIDE = SIZES | {"intermediate_size": 48, "num_key_value_heads": 2}
PACKED: dict[str, dict[str, Any]] = {
    "llama": WIDE,
    "qwen2": WIDE,
    "qwen3": WIDE | {"head_dim": 16},
    "gpt2": {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": SIZES | {"intermediate_size": 48},
    "qwen3_moe": WIDE | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
PADDED: dict[str, dict[str, Any]] = {
    "mistral": WIDE | {"sliding_window": 16},  # sees a window only
    "falcon": SIZES | {"alibi": True},  # biases by distance
}


def model_of(kind: str, sizes: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    return model.eval()


def rows(seed: int = 0) -> list[TokenSequence]:
    """Ragged sequences of several turns; some share a beginning, and one shares another's turns too."""
    rng = np.random.default_rng(seed)
    stem = rng.integers(61, size=20)
    nothing: Any = np.empty(0)
    found = []
    for length in (5, 9, 24, 14, 2, 30):
        ids = np.concatenate([stem if length % 2 == 0 else stem[:0], rng.integers(61, size=length)])
        found.append(ids)
    found.append(np.concatenate([found[2][:35], rng.integers(61, size=6)]))
    return [TokenSequence(ids, np.flatnonzero(rng.random(ids.size - 1) < 0.5) + 1, *[nothing] * 3) for ids in found]
