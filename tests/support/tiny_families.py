"""Build untrained tiny models of several families in Hugging Face format."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stepstream.learner.tiny.model import build_tokenizer

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _SIZES | {"tie_word_embeddings": False},
    "qwen2": _SIZES | {"tie_word_embeddings": True},
    "qwen3": _SIZES,
    "gemma2": _SIZES | {"final_logit_softcapping": 0.5, "query_pre_attn_scalar": 8, "sliding_window": 512},
    "cohere": _SIZES | {"logit_scale": 4.0},
    "granite": _SIZES | {"logits_scaling": 0.25},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
}


def tiny_of(family: str, folder: Path, dtype: torch.dtype = torch.float32, vocabulary: int = 0) -> Path:
    """Save an untrained model of one of `FAMILIES` with the tiny tokenizer; `vocabulary` may exceed the tokenizer's."""
    tokenizer = build_tokenizer(512)
    torch.manual_seed(0)
    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = AutoConfig.for_model(family, vocab_size=max(vocabulary, len(tokenizer)), **ends, **FAMILIES[family])
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
