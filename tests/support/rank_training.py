"""Train small models for a few updates, alone or as ranks."""

from pathlib import Path
from typing import Any

from labelled_records import attempt, group_of

from stepstream.config import LearnerSettings
from stepstream.learner.model.checkpoint import write_version
from stepstream.learner.model.distributed import current_ranks
from stepstream.learner.training.trainer import Trainer

KINDS: dict[str, dict[str, Any]] = {
    "full": {"kl_weight": 0.1, "advantage": "ppo_gae"},
    "adapters": {"lora_rank": 4, "kl_weight": 0.1, "advantage": "hcapo"},
    "preferences": {"objective": "dpo", "activation_checkpointing": True, "precision": "bfloat16"},
}


def save(trainer: Trainer, parent: Path, target: Path) -> None:
    """Write a version from all ranks; every rank must call this."""
    snapshot = trainer.snapshot()
    if current_ranks().rank:
        snapshot.help_write()
    else:
        write_version(snapshot, parent, target)


def learn(kind: str, folder: Path, target: Path, root: Path, updates: tuple[int, ...]) -> list[dict[str, float]]:
    """Train from `folder` into `target`, in the lineage of `root`; return the figures of each update."""
    # A pass holds so few tokens that the last round of each step leaves some ranks without one.
    config = LearnerSettings.model_validate(
        {"preset": "tiny", "warmup_updates": 0, "microbatch_tokens": 60, "max_grad_norm": 0.1, **KINDS[kind]}
    )
    trainer = Trainer(folder, config, root)
    figures = [
        trainer.update(n, [[attempt(record) for record in group_of(f"{n}/{g}", 5)] for g in range(3)], version=1)
        for n in updates
    ]
    save(trainer, folder, target)
    return figures


def learn_all(version: int, data: Path, parent: str, target: str) -> list[list[dict[str, float]]]:
    """Train each kind of model from DATA/KIND/PARENT into DATA/KIND/TARGET with the two updates of a version."""
    updates = (2 * version - 1, 2 * version)
    return [learn(kind, data / kind / parent, data / kind / target, data / kind / "0", updates) for kind in KINDS]
