"""Check that versions are compared by what vLLM computes with beside the weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.services.inference.model_config import check_same_config, read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0",
}


def folder(path: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        ({"rope_theta": 500000.0}, "rope"),
        ({"num_attention_heads": 8}, "num_attention_heads"),
        ({"rms_norm_eps": 1e-6}, "in rms_norm_eps;"),
        ({"eos_token_id": [2, 3]}, "in eos_token_id;"),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "of_tomorrow"])
def test_another_configuration_is_refused_with_its_keys(
    tmp_path: Path, changed: dict[str, Any], keys: str, model_type: str
) -> None:
    config = {**LLAMA, "model_type": model_type}
    served = read_config(folder(tmp_path / "served", config))
    other = folder(tmp_path / "other", {**config, **changed})
    with pytest.raises(CheckpointRefusedError, match=f"differs from the served version's in .*{keys}|{keys}"):
        check_same_config(other, read_config(other), served)


def test_end_tokens_of_both_files_count(tmp_path: Path) -> None:
    served = read_config(folder(tmp_path / "served", LLAMA, {"eos_token_id": [2, 7]}))
    for generation in ({"eos_token_id": 2}, {"eos_token_id": [2, 8]}, None):
        other = folder(tmp_path / str(generation), LLAMA, generation)
        with pytest.raises(CheckpointRefusedError, match="in eos_token_id;"):
            check_same_config(other, read_config(other), served)
    same = folder(tmp_path / "same", {**LLAMA, "eos_token_id": [7, 2]}, {"temperature": 0.6})
    check_same_config(same, read_config(same), served)


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        {**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 2048}},
        {**LLAMA, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 32768},
        {**LLAMA, "model_type": "qwen3", "head_dim": 16},
        {**LLAMA, "model_type": "gemma2", "query_pre_attn_scalar": 16},
        {**LLAMA, "model_type": "cohere"},
        {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 100},
    ],
)  # fmt: skip
def test_what_the_learner_writes_anew_is_the_same(tmp_path: Path, config: dict[str, Any]) -> None:
    root = folder(tmp_path / "root", config)
    written: Any = AutoConfig.from_pretrained(root)
    written.dtype = "float32"
    written.use_cache = False
    written.save_pretrained(tmp_path / "next")
    check_same_config(tmp_path / "next", read_config(tmp_path / "next"), read_config(root))


def test_a_damaged_configuration_is_refused(tmp_path: Path) -> None:
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(CheckpointRefusedError, match=r"config\.json"):
            read_config(tmp_path)
