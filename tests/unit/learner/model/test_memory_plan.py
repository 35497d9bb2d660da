"""Check the estimate of memory: against measured tensors at a small size, and its laws at real sizes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ranks import run_in_ranks
from training_peak import model_of, peak_of_steps, peak_of_version

from stepstream.cli.plan_memory import plan_memory as command
from stepstream.config import LearnerSettings
from stepstream.learner.model import lm_head
from stepstream.learner.model.memory_plan import MemoryPlan, ModelShape, advice, plan_memory
from stepstream.learner.model.model_shape import shape_of

GB = 10**9
SEVEN = ModelShape(
    weights=7_615_616_512, trained=7_615_616_512, block=233_057_792, trained_in_block=233_057_792,
    outside=1_089_998_336, trained_outside=1_089_998_336, layers=28, hidden=3584, intermediate=18944,
    queries=3584, keys=512, key_heads=4, vocabulary=152_064,
)  # fmt: skip
"""Qwen2.5-7B."""


def config(**fields: Any) -> LearnerSettings:
    return LearnerSettings.model_validate({"device": "cuda", "precision": "bfloat16", **fields})


def plan(gpus: int = 1, **fields: Any) -> MemoryPlan:
    return plan_memory(SEVEN, config(**fields), gpus)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "fields"),
    [
        (8, {"microbatch_tokens": 1024, "activation_checkpointing": False}),
        (4, {"microbatch_tokens": 2048, "activation_checkpointing": True}),
        (4, {"microbatch_tokens": 2048, "activation_checkpointing": True, "precision": "bfloat16"}),
        (4, {"microbatch_tokens": 2048, "activation_checkpointing": True, "lora_rank": 4}),
    ],
)
@pytest.mark.parametrize("gpus", [1, 2])
def test_the_estimate_is_near_the_tensors_of_a_step(
    tmp_path: Path, layers: int, fields: dict[str, Any], gpus: int
) -> None:
    # Two ranks share a pack of twice the tokens if its activations are recomputed in float32, or kept.
    sequence = 1 if {"precision", "lora_rank"} & fields.keys() else gpus
    fields = fields | {"sequence_parallel": sequence, "microbatch_tokens": sequence * fields["microbatch_tokens"]}
    folder = model_of(tmp_path, layers)
    small = LearnerSettings.model_validate({"preset": "tiny", "reproducible": False, **fields})
    estimate = plan_memory(shape_of(folder, small), small, gpus, logits=lm_head._MAX_LOGITS["cpu"])
    expected = estimate.gpu_total - estimate.gpu["reserve"]
    for peak in run_in_ranks(gpus, peak_of_steps, folder, small):
        assert 0.97 * peak < expected < 1.2 * peak


@pytest.mark.slow
def test_a_reference_takes_as_much_as_estimated(tmp_path: Path) -> None:
    folder = model_of(tmp_path, 8)
    with_one, without = (
        LearnerSettings.model_validate(
            {"preset": "tiny", "microbatch_tokens": 64, "reproducible": False, "kl_weight": weight}
        )
        for weight in (0.1, 0.0)
    )
    expected = plan_memory(shape_of(folder, with_one), with_one, 2, has_reference=True).gpu["reference"]
    more, fewer = (run_in_ranks(2, peak_of_steps, folder, config) for config in (with_one, without))
    for peak, other in zip(more, fewer, strict=True):
        assert 0.97 * (peak - other) < expected < 1.05 * (peak - other)


@pytest.mark.slow
def test_a_critic_takes_as_much_as_estimated(tmp_path: Path) -> None:
    """The pass is long enough that its layers, computed again in the backward pass, take more than the logits."""
    folder = model_of(tmp_path, 2)
    small = LearnerSettings.model_validate(
        {"preset": "tiny", "microbatch_tokens": 12288, "reproducible": False, "activation_checkpointing": True}
    )
    expected = plan_memory(shape_of(folder, small), small, 1, has_critic=True).gpu["critic"]
    more, fewer = (run_in_ranks(1, peak_of_steps, folder, small, critic) for critic in (True, False))
    for peak, other in zip(more, fewer, strict=True):
        assert 0.97 * (peak - other) < expected < 1.05 * (peak - other)


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2])
def test_offloaded_moments_take_as_much_as_estimated(tmp_path: Path, gpus: int) -> None:
    """On a CPU the same memory holds both sides, and gradients need no copy to step there."""
    folder = model_of(tmp_path, 8)
    with_offload, without = (
        LearnerSettings.model_validate(
            {"preset": "tiny", "microbatch_tokens": 64, "reproducible": False, "optimizer_offload": is_offloaded}
        )
        for is_offloaded in (True, False)
    )
    shape = shape_of(folder, with_offload)
    plans = [plan_memory(shape, each, gpus) for each in (with_offload, without)]
    moments = [plan.gpu["moments"] + plan.host["moments and stepped weights"] for plan in plans]
    expected = moments[0] - moments[1] - 4 * shape.trained // gpus
    more, fewer = (run_in_ranks(gpus, peak_of_steps, folder, config) for config in (with_offload, without))
    for peak, other in zip(more, fewer, strict=True):
        assert 0.97 * (peak - other) < expected < 1.05 * (peak - other)


@pytest.mark.parametrize(("fields", "ranks"), [({}, 1), ({}, 2), ({"lora_rank": 4}, 2)])
def test_no_rank_holds_the_whole_state_to_write_a_version(tmp_path: Path, fields: dict[str, Any], ranks: int) -> None:
    folder = model_of(tmp_path / "0", 4)
    small = LearnerSettings.model_validate({"preset": "tiny", "microbatch_tokens": 64, "reproducible": False, **fields})
    shape = shape_of(folder, small)
    expected = plan_memory(shape, small, ranks).host["snapshot of a version"]
    peaks = run_in_ranks(ranks, peak_of_version, folder, small, tmp_path / "1")
    assert (tmp_path / "1/training/optimizer.safetensors").stat().st_size > 8 * shape.trained
    for peak in peaks:
        # One merged weight at a time is beside the copies.
        assert 0.97 * peak < expected + (2 * 4 * shape.block // 4 if fields else 0) < 1.2 * peak
    assert ranks == 1 or max(peaks) < 0.6 * (4 * shape.weights if fields else 12 * shape.weights)


def test_more_gpus_and_each_saving_take_less_of_a_gpu() -> None:
    whole = plan(8, gradient_sync="pass").gpu_total
    assert (
        plan(16, gradient_sync="pass").gpu_total < whole < plan(8).gpu_total < plan(1, gradient_sync="pass").gpu_total
    )
    for saving in (
        {"optimizer": "adamw_8bit"},
        {"optimizer_offload": True},
        {"microbatch_tokens": 4096},
    ):
        assert plan(8, gradient_sync="pass", **saving).gpu_total < whole
    split = plan(8, gradient_sync="pass", sequence_parallel=8)
    assert 7.9 < plan(8).gpu["kept activations"] / split.gpu["kept activations"] < 8.1
    assert split.gpu_total < whole
    assert plan(8, shard_ranks=4, gradient_sync="pass").gpu_total > whole
    assert plan(8, activation_checkpointing=False, gradient_sync="pass").gpu_total > whole


def test_moments_leave_the_gpu_for_the_host() -> None:
    kept, offloaded = plan(), plan(optimizer_offload=True)
    assert kept.gpu["moments"] == 8 * SEVEN.weights
    assert (kept.host["moments and stepped weights"], offloaded.gpu["moments"]) == (0, 0)
    assert offloaded.host["moments and stepped weights"] == 16 * SEVEN.weights


def test_the_advice_makes_the_plan_fit() -> None:
    parts = {"has_reference": False, "has_critic": False}
    assert advice(SEVEN, config(), 1, 141 * GB, **parts) == ["learner.optimizer_offload=true"]
    assert advice(SEVEN, config(optimizer_offload=True), 1, 141 * GB, **parts) == []
    assert advice(SEVEN, config(), 4, 80 * GB, **parts) == ["learner.gradient_sync=pass"]
    adapters = replace(SEVEN, trained=40_000_000, trained_in_block=1_400_000, trained_outside=0)
    assert advice(adapters, config(), 1, 80 * GB, **parts) == []
    assert advice(SEVEN, config(), 1, 40 * GB, **parts)[-1] == "more GPUs, or adapters (learner.lora_rank)"


def test_the_command_reads_a_configuration_alone(tmp_path: Path) -> None:
    folder = model_of(tmp_path / "model", 2)
    (folder / "model.safetensors").unlink()
    answer = CliRunner().invoke(command, [str(folder), "--gpus", "2", "--json"])
    assert answer.exit_code == 0, answer.output
    facts = json.loads(answer.output)
    assert facts["weights"] == facts["trained"] > 500_000
    assert facts["changes"] == {"80 GB": [], "141 GB": []}
    text = CliRunner().invoke(command, [str(folder), "--lora-rank", "4"]).output
    assert "80 GB: fits" in text
    assert "float32 weights" in text
