"""Measure the tensors of training steps at a small size."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from peak_tensors import PeakTensors
from transformers import AutoConfig, AutoModelForCausalLM

from stepstream.config import LearnerSettings
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.model.checkpoint import write_version
from stepstream.learner.model.critic import Critic
from stepstream.learner.model.distributed import current_ranks
from stepstream.learner.model.policy import Policy
from stepstream.learner.model.reference import reference_of

_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 2000,
    "max_position_embeddings": 4096,
}


def model_of(folder: Path, layers: int) -> Path:
    config = AutoConfig.for_model("llama", num_hidden_layers=layers, **_SIZES)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def _rows_of(config: LearnerSettings) -> list[TokenSequence]:
    ids = np.random.default_rng(0).integers(2000, size=(4, config.microbatch_tokens // 4))
    nothing: Any = np.zeros(0, np.int64)
    return [TokenSequence(row, np.arange(1, row.size), np.zeros(0, np.float32), nothing, nothing) for row in ids]


def peak_of_version(folder: Path, config: LearnerSettings, target: Path) -> int:
    """Return the most bytes of tensors that this rank takes, beside those of the training, to write a version."""
    policy = Policy(folder, config)
    policy.learn(policy.logprobs(_rows_of(config)).sum())
    policy.step(1e-4)
    tensors = PeakTensors()
    tensors.hold(policy.model.parameters())
    for name in policy.weights:
        tensors.hold(policy._optimizer.state_of(name).values())
    before = tensors.held
    with tensors:
        snapshot = policy.snapshot()
        if current_ranks().rank:
            snapshot.help_write()
        else:
            write_version(snapshot, folder, target)
    return tensors.peak - before


def peak_of_steps(folder: Path, config: LearnerSettings, has_critic: bool = False) -> int:
    """Return the most bytes of tensors in two optimizer steps, each of one full forward pass and the reference's."""
    rows = _rows_of(config)
    targets = torch.ones(sum(row.trained.size for row in rows))
    tensors = PeakTensors()
    with tensors:
        policy = Policy(folder, config)
        reference = reference_of(policy, folder, config)
        critic = Critic(policy.state_size, config, folder) if has_critic else None
        tensors.peak = 0
        for _ in range(2):
            if reference:
                reference(rows)
            scores = policy.scores(rows, states=has_critic)
            policy.learn(scores.logprobs.sum())
            if critic is not None and scores.states is not None:
                critic.learn([critic.gradient_of(scores.states, targets, targets)])
            del scores
            policy.step(1e-4)
    return tensors.peak
