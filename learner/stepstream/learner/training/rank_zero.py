"""Let rank 0 lead: only it reads Kafka and publishes, and the other ranks repeat each call of its trainer."""

from collections.abc import Sequence
from pathlib import Path

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.model.checkpoint import Snapshot
from stepstream.learner.model.distributed import broadcast, current_ranks, receive
from stepstream.learner.training.trainer import Trainer

_END = ("end", ())
"""Command that ends the other ranks."""


class BroadcastingTrainer(Trainer):
    """The trainer of rank 0: broadcasts each call to the other ranks before it executes it."""

    def __init__(self, folder: Path, config: LearnerSettings, root: Path | None = None) -> None:
        broadcast(("begin", (folder, config, root)))
        super().__init__(folder, config, root)

    def update(self, number: int, groups: Sequence[Sequence[Attempt]], version: int) -> dict[str, float]:
        """Run `Trainer.update` on all ranks."""
        broadcast(("update", (number, groups, version)))
        return super().update(number, groups, version)

    def snapshot(self) -> Snapshot:
        """Run `Trainer.snapshot` on all ranks."""
        broadcast(("snapshot", ()))
        return super().snapshot()


def trainer_for(folder: Path, config: LearnerSettings, root: Path | None = None) -> Trainer:
    """Return rank 0's trainer, whose work all ranks share; the arguments are those of `Trainer`.

    Raises:
        CannotTrain: the learner does not know how to train such a model.
    """
    return BroadcastingTrainer(folder, config, root) if current_ranks().size > 1 else Trainer(folder, config, root)


def follow() -> None:
    """Repeat the calls of rank 0's trainer until `end_followers`; for the other ranks.

    Raises:
        Fatal: rank 0 is gone.
    """
    trainer: Trainer | None = None
    while (command := receive()) != _END:
        name, arguments = command
        if name == "begin":
            trainer = None  # free its memory first
            trainer = Trainer(*arguments)
        else:
            getattr(trainer, name)(*arguments)


def end_followers() -> None:
    """End `follow` in the other ranks; for rank 0."""
    if current_ranks().size > 1:
        broadcast(_END)
