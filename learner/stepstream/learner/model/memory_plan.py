"""Estimate the memory of training on each GPU, part by part. Pure.

Sources: Rajbhandari et al. 2020 (ZeRO, arXiv:1910.02054, section 3: weights, gradients and moments by shard);
Korthikanti et al. 2022 (arXiv:2205.05198, section 4: activations by layer and what recomputation leaves), counted anew
for blocks with RMS norms, grouped attention without a score matrix, and a gated MLP; Dettmers et al. 2021
(arXiv:2110.02861: moments in 8 bits by blocks of 256 numbers).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stepstream.config import LearnerSettings

_GIB = 1024**3
_RESERVE = 2 * _GIB
"""CUDA's context and libraries, and buffers of NCCL."""
_FRAGMENTED = 0.05
"""Share of the other parts that the allocator loses to fragments."""
_BLOCK_OF_8BIT = 256
"""Numbers that share a scale of 4 bytes in moments of 8 bits."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model. Numbers of weights include adapters."""

    weights: int
    trained: int
    block: int
    """Weights of the largest layer."""
    trained_in_block: int
    outside: int
    """Weights outside of the layers: embeddings, last norm, output layer."""
    trained_outside: int
    layers: int
    hidden: int
    intermediate: int
    queries: int
    """Query heads times their size."""
    keys: int
    """Key heads times their size."""
    key_heads: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by part on one GPU, and in host memory for one GPU."""

    gpu: Mapping[str, int]
    host: Mapping[str, int]

    @property
    def gpu_total(self) -> int:
        """Bytes on one GPU."""
        return sum(self.gpu.values())

    @property
    def host_total(self) -> int:
        """Bytes of host memory for one GPU."""
        return sum(self.host.values())


def plan_memory(
    shape: ModelShape,
    config: LearnerSettings,
    gpus: int,
    *,
    has_reference: bool = False,
    has_critic: bool = False,
    logits: int = 2**27,
) -> MemoryPlan:
    """Estimate the bytes of one rank at the fullest moment of a step.

    Args:
        shape: sizes of the model, with adapters if they are trained.
        config: settings: precision, sharding, offload, optimizer, recomputation, tokens of a pass.
        gpus: number of ranks.
        has_reference: True if a frozen copy of the root is needed.
        has_critic: True if the rule needs a critic.
        logits: number of logits that the output layer computes at a time.
    """
    shards = config.shard_ranks or gpus
    number = 2 if config.precision == "bfloat16" else 4
    rows = max(64, logits // shape.vocabulary)
    tokens = -(-config.microbatch_tokens // config.sequence_parallel)
    shape = _with_copied_keys(shape, config.sequence_parallel)
    gpu = {
        "float32 weights": 4 * shape.weights // shards,
        "gradients": 4 * shape.trained // shards,
        "moments": 0 if config.optimizer_offload else _moments(config, shape.trained) // shards,
        "gathered weights": number * (2 * shape.block + shape.outside),
        "whole gradients": 4 * shape.trained if gpus > 1 and config.gradient_sync == "step" else 0,
        "kept activations": _kept(shape, config.activation_checkpointing, number) * tokens,
        "output layer, or one layer's backward": max(
            3 * 4 * min(rows, tokens) * shape.vocabulary + 3 * number * shape.hidden * tokens,
            (_backward(shape, config.activation_checkpointing, number) + _exchange(shape, config, number)) * tokens
            + (4 + number) * max(shape.trained_in_block, shape.trained_outside),
        ),
        "gradient of the output layer": number * shape.trained_outside,
        "reference": 4 * shape.weights // shards if has_reference and not config.reference_offload else 0,
        # It reads the last hidden states after the backward pass, which keeps them: those of the whole pass.
        "critic": (number * config.microbatch_tokens + 4 * 4) * shape.hidden if has_critic else 0,
    }
    gpu["reserve"] = _RESERVE + int(_FRAGMENTED * sum(gpu.values()))
    host = {
        "moments and stepped weights": 16 * shape.trained // shards if config.optimizer_offload else 0,
        "reference": 4 * shape.weights // shards if has_reference and config.reference_offload else 0,
        "snapshot of a version": _snapshot(shape, shards),
    }
    return MemoryPlan(gpu, host)


def _with_copied_keys(shape: ModelShape, ranks: int) -> ModelShape:
    """Return the sizes with the copies of key heads that let ranks divide them."""
    return replace(shape, keys=shape.keys * math.lcm(shape.key_heads, ranks) // shape.key_heads)


def _exchange(shape: ModelShape, config: LearnerSettings, number: int) -> int:
    """Return the bytes per token of one exchange of tokens for heads: queries, keys and values, sent and received."""
    return 2 * number * (shape.queries + 2 * shape.keys) if config.sequence_parallel > 1 else 0


def _snapshot(shape: ModelShape, shards: int) -> int:
    """Return the bytes of the copy from which a version is written: trained weights and moments.

    Adapters are copied whole; frozen weights are read when they are written.
    """
    weights = 4 * shape.trained if shape.trained < shape.weights else 4 * shape.trained // shards
    return weights + 8 * shape.trained // shards


def _layer(shape: ModelShape, number: int) -> int:
    """Return the bytes per token that one layer keeps for its backward pass.

    Each of its two norms keeps a float32 input and two outputs; attention keeps queries before and after the rotation,
    its output, keys and values in the layouts of both sides; the MLP keeps gate, its activation, up and their product.

    Args:
        shape: sizes of the model.
        number: bytes of a number in matrix products.
    """
    norms = 2 * (4 + 2 * number) * shape.hidden
    return norms + number * (3 * shape.queries + 4 * shape.keys + 4 * shape.intermediate)


def _kept(shape: ModelShape, recomputed: bool, number: int) -> int:
    """Return the bytes per token kept from the forward pass: each layer's input, or everything; and the last norm's."""
    last = (4 + 2 * number) * shape.hidden
    return shape.layers * (number * shape.hidden if recomputed else _layer(shape, number)) + last


def _backward(shape: ModelShape, recomputed: bool, number: int) -> int:
    """Return the bytes per token of one layer's backward pass: what it recomputes, and gradients of the widest part."""
    gradients = number * (2 * shape.intermediate + 2 * shape.hidden)
    return gradients + (_layer(shape, number) if recomputed else 0)


def _moments(config: LearnerSettings, trained: int) -> int:
    if config.optimizer == "adamw_8bit":
        return 2 * trained + 2 * trained * 4 // _BLOCK_OF_8BIT
    return 8 * trained


def advice(
    shape: ModelShape, config: LearnerSettings, gpus: int, limit: int, *, has_reference: bool, has_critic: bool
) -> list[str]:
    """Return settings to change, in order, until the plan fits `limit` bytes; empty: none is needed.

    The last entry says so if no setting helps.
    """
    changes: list[str] = []

    def fits() -> bool:
        plan = plan_memory(shape, config, gpus, has_reference=has_reference, has_critic=has_critic)
        return plan.gpu_total <= limit

    for name, value in (
        ("precision", "bfloat16"),
        ("activation_checkpointing", True),
        ("gradient_sync", "pass"),
        ("shard_ranks", 0),
        ("reference_offload", True),
        ("optimizer_offload", True),
    ):
        if fits():
            return changes
        is_useless = (name == "gradient_sync" and gpus == 1) or (name == "reference_offload" and not has_reference)
        if getattr(config, name) != value and not is_useless:
            update = {name: value} | ({"optimizer": "adamw"} if name == "optimizer_offload" else {})
            config = config.model_copy(update=update)
            changes.append(f"learner.{name}={str(value).lower()}")
    while not fits() and config.microbatch_tokens > 1024:
        config = config.model_copy(update={"microbatch_tokens": config.microbatch_tokens // 2})
        changes = [each for each in changes if "microbatch_tokens" not in each]
        changes.append(f"learner.microbatch_tokens={config.microbatch_tokens}")
    if not fits():
        changes.append("more GPUs, or adapters (learner.lora_rank)")
    return changes
