"""Provide the reference policy: the frozen root of the lineage, for penalties and preferences relative to it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from stepstream.config import LearnerSettings
from stepstream.learner.data.requirements import requirements_of
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.model.forward import Scores
from stepstream.learner.model.policy import Policy
from stepstream.learner.model.scored import load_scored
from stepstream.learner.model.sharded_load import read_weights
from stepstream.topics.events import Checkpoint
from stepstream.versions.layout import weights_folder

Reference = Callable[[Sequence[TokenSequence]], Tensor]
"""Returns log ref of every trained token, row after row, without gradient. Shape [trained tokens]."""


def needs_reference(config: LearnerSettings) -> bool:
    """Return True if the settings need a reference policy."""
    return config.kl_weight > 0 or requirements_of(config).reference


def reference_folder(root: Checkpoint, config: LearnerSettings, fetch: Callable[[Checkpoint], Path]) -> Path | None:
    """Return the verified folder of a lineage's root if a copy of its weights is needed; else None.

    Raises:
        VersionRejected: its files are gone or damaged.
    """
    if not needs_reference(config) or config.lora_rank:
        return None
    return fetch(root)


def reference_of(policy: Policy, root: Path | None, config: LearnerSettings) -> Reference | None:
    """Return the reference if the settings need one, else None.

    With adapters it is the policy without them, which costs no memory; else a copy of the root's weights, sharded as
    the policy's.

    Args:
        policy: policy in training.
        root: folder of the lineage's root.
        config: the learner's settings.

    Raises:
        ValueError: a root is needed and `root` is None.
        CannotTrain: the learner cannot load the root's model.
    """
    if not needs_reference(config):
        return None
    if config.lora_rank:
        return policy.reference_logprobs
    if root is None:
        raise ValueError("the settings need a reference policy: pass the folder of the lineage's root")
    return _FrozenModel(root, config)


class _FrozenModel:
    """A model with frozen weights."""

    def __init__(self, folder: Path, config: LearnerSettings) -> None:
        served = weights_folder(folder)
        self._scored = load_scored(
            served,
            config,
            change=lambda model: model.requires_grad_(False),
            fill=lambda model, empty: read_weights(model, served) if empty else None,
        )

    @torch.no_grad()
    def __call__(self, rows: Sequence[TokenSequence]) -> Tensor:
        scores: Scores = self._scored(rows)
        return scores.logprobs
