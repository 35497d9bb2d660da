"""Let rank 0 lead: only it reads Kafka and publishes, and the other ranks repeat each call of its trainer."""

import logging
import queue
import threading
from collections.abc import Sequence
from pathlib import Path

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.model.distributed import current_ranks
from stepstream.learner.model.rank_groups import CONTROL
from stepstream.learner.model.snapshot import Snapshot
from stepstream.learner.training.trainer import Trainer

log = logging.getLogger(__name__)

_END = ("end", ())
"""Command that ends the other ranks."""


class BroadcastingTrainer(Trainer):
    """The trainer of rank 0: broadcasts each call to the other ranks before it executes it."""

    def __init__(self, folder: Path, config: LearnerSettings, root: Path | None = None) -> None:
        CONTROL.broadcast(("begin", (folder, config, root)))
        super().__init__(folder, config, root)

    def update(self, number: int, groups: Sequence[Sequence[Attempt]], version: int) -> dict[str, float]:
        """Run `Trainer.update` on all ranks."""
        CONTROL.broadcast(("update", (number, groups, version)))
        return super().update(number, groups, version)

    def snapshot(self) -> Snapshot:
        """Run `Trainer.snapshot` on all ranks; the others then wait for `Snapshot.write`, and train on meanwhile."""
        CONTROL.broadcast(("snapshot", ()))
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
    writer = _WritingThread()
    while (command := CONTROL.receive()) != _END:
        name, arguments = command
        if name == "begin":
            trainer = None  # free its memory first
            trainer = Trainer(*arguments)
        elif name == "snapshot":
            assert trainer is not None
            writer.put(trainer.snapshot())
        else:
            getattr(trainer, name)(*arguments)
    writer.close()


class _WritingThread:
    """Writes this rank's rows of each snapshot, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Snapshot | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="version-writer", daemon=True)
        self._thread.start()

    def put(self, snapshot: Snapshot) -> None:
        """Write a snapshot after those before it."""
        self._queue.put(snapshot)

    def close(self) -> None:
        """End after the snapshots that are there."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (snapshot := self._queue.get()) is not None:
            try:
                snapshot.help_write()
            except Exception:  # without this rank, rank 0's exchange fails and ends all ranks
                log.exception("this rank's rows of a version were not written")
                return


def end_followers() -> None:
    """End `follow` in the other ranks; for rank 0."""
    if current_ranks().size > 1:
        CONTROL.broadcast(_END)
