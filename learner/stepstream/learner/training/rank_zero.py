"""Rank 0 leads: it alone reads Kafka and publishes; what it has a trainer do, the other ranks do with it."""

from collections.abc import Sequence
from pathlib import Path

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.model.checkpoint import Snapshot
from stepstream.learner.model.distributed import broadcast, current_ranks, receive
from stepstream.learner.training.trainer import Trainer

_END = ("end", ())


class LedTrainer(Trainer):
    """Rank 0's trainer: passes on what it is asked before it does it."""

    def __init__(self, folder: Path, config: LearnerSettings, root: Path | None = None) -> None:
        broadcast(("begin", (folder, config, root)))
        super().__init__(folder, config, root)

    def update(self, number: int, groups: Sequence[Sequence[Attempt]], version: int) -> dict[str, float]:
        """As `Trainer.update`, with all ranks."""
        broadcast(("update", (number, groups, version)))
        return super().update(number, groups, version)

    def snapshot(self) -> Snapshot:
        """As `Trainer.snapshot`, with all ranks."""
        broadcast(("snapshot", ()))
        return super().snapshot()


def trainer_for(folder: Path, config: LearnerSettings, root: Path | None = None) -> Trainer:
    """In rank 0: a trainer whose work all ranks share; its arguments are `Trainer`'s.

    Raises:
        CannotTrain: the learner does not know how to train such a model.
    """
    return LedTrainer(folder, config, root) if current_ranks().size > 1 else Trainer(folder, config, root)


def follow() -> None:
    """In the other ranks: does what rank 0 says until it ends.

    Raises:
        Fatal: rank 0 is gone.
    """
    trainer: Trainer | None = None
    while (order := receive()) != _END:
        name, arguments = order
        if name == "begin":
            trainer = None  # its memory is needed
            trainer = Trainer(*arguments)
        else:
            getattr(trainer, name)(*arguments)


def dismiss() -> None:
    """In rank 0: ends `follow`."""
    if current_ranks().size > 1:
        broadcast(_END)
