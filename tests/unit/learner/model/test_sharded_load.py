"""Check models that are sharded from the beginning: values, memory, and training where bits are not promised."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelled_records import tiny_model
from ranks import run_in_ranks
from sharded_policies import collectives_of_a_step, config_of, logprobs_of, peak_of_load, trained
from tiny_families import FAMILIES, tiny_of
from transformers import AutoConfig, AutoModelForCausalLM

from stepstream.learner.model.sharded_load import empty_model
from stepstream.learner.model.tensor_files import WholeTensors, weight_files

DEEP = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 16, "head_dim": 64}
FREE: dict[str, Any] = {"reproducible": False}


def close(some: dict[str, Any], others: dict[str, Any], tolerance: float) -> bool:
    """Return True if two trainings end at nearly the same weights, measured by the way from 0."""
    return all(
        np.abs(some["weights"][name] - other).max() <= tolerance * np.abs(other).max()
        for name, other in others["weights"].items()
    )


@pytest.mark.slow
def test_every_family_scores_as_the_model_that_transformers_loads(tmp_path: Path) -> None:
    folders = [tiny_of(family, tmp_path / family) for family in FAMILIES]
    alone = logprobs_of(folders)
    assert run_in_ranks(2, logprobs_of, folders) == [alone] * 2


def test_an_empty_model_holds_no_weights(tmp_path: Path) -> None:
    model = empty_model(tiny_of("qwen2", tmp_path))
    assert all(weight.is_meta for weight in model.parameters())
    assert not any(buffer.is_meta for buffer in model.buffers())
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_rank_never_holds_a_whole_model(tmp_path: Path) -> None:
    folder = tiny_of("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text()) | DEEP
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).save_pretrained(folder)
    whole = (folder / "model.safetensors").stat().st_size
    for peak, own in run_in_ranks(4, peak_of_load, folder):
        assert own < 0.26 * whole
        assert peak < 0.5 * whole  # its rows, the layers that are gathered at once, and the trial


def test_files_and_memory_give_the_same_values(tmp_path: Path) -> None:
    files = weight_files(tiny_of("llama", tmp_path))
    like = torch.empty(512, 32)
    value = files.read("model.embed_tokens.weight", like)
    assert "missing" not in files
    assert torch.equal(WholeTensors({"a": value}).read("a", like), value)


@pytest.mark.slow
def test_any_number_of_ranks_trains_and_continues_where_bits_are_not_promised(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "0")
    expected = trained(folder, None, (1, 2), {})
    assert close(trained(folder, None, (1, 2), FREE), expected, 1e-4)
    for found in run_in_ranks(3, trained, folder, tmp_path / "1", (1,), FREE):
        assert len(found["norms"]) == 1
    for found in run_in_ranks(2, trained, tmp_path / "1", None, (2,), FREE):
        assert close(found, expected, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "tolerance"),
    [
        pytest.param({"gradient_sync": "pass"}, 1e-4, id="a sum of gradients in each pass"),
        pytest.param({"shard_ranks": 2}, 1e-4, id="hybrid sharding"),
        pytest.param({"shard_ranks": 2, "gradient_sync": "pass"}, 1e-4, id="hybrid sharding, sum in each pass"),
        pytest.param({"kl_weight": 0.1, "reference_offload": True}, 1e-4, id="a reference in host memory"),
        pytest.param({"optimizer_offload": True}, 1e-4, id="moments in host memory"),
        pytest.param({"precision": "bfloat16"}, 5e-3, id="weights gathered in bfloat16"),
        pytest.param({"lora_rank": 4, "precision": "bfloat16"}, 5e-2, id="adapters"),
    ],
)
def test_four_ranks_come_near_the_exact_weights(tmp_path: Path, fields: dict[str, Any], tolerance: float) -> None:
    folder = tiny_model(tmp_path / "0")
    exact = {name: value for name, value in fields.items() if name in ("kl_weight", "lora_rank")}
    expected = trained(folder, None, (1,), exact)
    first, *others = run_in_ranks(4, trained, folder, None, (1,), FREE | fields)
    assert first["norms"] == pytest.approx(expected["norms"], rel=max(tolerance, 1e-3))
    # AdamW's first step moves an adapter's B by the sign of its gradient, however small.
    assert "lora_rank" in fields or close(first, expected, tolerance)
    assert all(close(other, first, 0.0) for other in others)


@pytest.mark.slow
def test_gradients_are_summed_over_all_ranks_once_a_step(tmp_path: Path) -> None:
    """Each of the two layers, and what lies outside of them, sends one sum."""
    folder = tiny_model(tmp_path / "0")
    for found in run_in_ranks(2, collectives_of_a_step, folder, FREE):
        assert found["_reduce_scatter_base_"] == 3
    # To save the memory of whole gradients, the ranks of a copy sum in each pass; the copies still sum once.
    for found in run_in_ranks(4, collectives_of_a_step, folder, FREE | {"shard_ranks": 2, "gradient_sync": "pass"}):
        assert found["_reduce_scatter_base_"] > 3
        assert found["allreduce_"] == 3


def test_hybrid_sharding_promises_no_bits() -> None:
    with pytest.raises(ValueError, match="set reproducible=false"):
        config_of(shard_ranks=2)
