"""The reference policy: the root of the lineage, frozen, for penalties and preferences that ask how far θ has moved."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from stepstream.config import LearnerSettings
from stepstream.learner.data.requirements import requirements_of
from stepstream.learner.data.sequences import TokenSequence
from stepstream.learner.model.checkpoint import folder_of, verify
from stepstream.learner.model.forward import forward_pass_for
from stepstream.learner.model.policy import Policy
from stepstream.learner.model.pretrained import load_model
from stepstream.topics.events import Checkpoint

Reference = Callable[[Sequence[TokenSequence]], Tensor]
"""log ref of every trained token, row after row, without gradient. Shape [trained tokens]."""


def needs_reference(config: LearnerSettings) -> bool:
    """Whether the learner's settings ask for one."""
    return config.kl_weight > 0 or requirements_of(config).reference


def reference_folder(root: Checkpoint, config: LearnerSettings) -> Path | None:
    """The folder of a lineage's root, checked, where a copy of its weights is needed; else None.

    Raises:
        CheckpointFault: its files are gone or damaged.
    """
    if not needs_reference(config) or config.lora_rank:
        return None
    folder = folder_of(root["uri"])
    verify(folder, root["files"])
    return folder


def reference_of(policy: Policy, root: Path | None, config: LearnerSettings) -> Reference | None:
    """The reference, where the settings need one.

    With adapters it is the policy without them, which costs no memory; else a copy of the root's weights, whole on
    each rank.

    Args:
        policy: the one in training.
        root: folder of the lineage's root.
        how: the learner's settings.

    Raises:
        ValueError: it is needed and `root` is None.
        CannotTrain: the root is a model that the learner does not know how to use.
    """
    if not needs_reference(config):
        return None
    if config.lora_rank:
        return policy.reference_logprobs
    if root is None:
        raise ValueError("the settings need a reference policy: give the folder of the lineage's root")
    return _Frozen(root, config)


class _Frozen:
    """A model that is never stepped."""

    def __init__(self, folder: Path, config: LearnerSettings) -> None:
        self._model = load_model(folder).to(torch.device(config.device)).requires_grad_(False)
        self._lower = config.precision == "bfloat16"
        with self._precision():
            self._way = forward_pass_for(self._model)

    @torch.no_grad()
    def __call__(self, rows: Sequence[TokenSequence]) -> Tensor:
        with self._precision():
            return self._way(self._model, rows).logprobs

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._lower)
