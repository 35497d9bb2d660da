"""Provide versions of a model on a log in memory, with files on disk, as followers of the log see them."""

from pathlib import Path
from typing import Any

from stepstream.topics.events import Checkpoint, CheckpointFile, Rollout, WorkerStatus, new_checkpoint_file
from stepstream.versions.rollouts import ModelVersions


class VersionLog:
    """Checkpoints and rollouts in order, the tables that follow them, and that of workers."""

    def __init__(self) -> None:
        self.events: list[Checkpoint] = []
        self.rollouts: list[Rollout] = []
        self.workers: dict[str, WorkerStatus] = {}
        self.workers_written_us: dict[str, int] = {}
        self.read: int | None = None
        """Number of checkpoint events that the follower has read; None: all."""

    def items(self) -> dict[str, Any]:
        return self.workers

    def written_us(self, worker_id: str) -> int | None:
        return self.workers_written_us.get(worker_id)

    def checkpoints(self, _model: str) -> dict[int, Checkpoint]:
        return self._fold().checkpoints

    def served(self, _model: str) -> Any:
        return self._fold().served

    def _fold(self) -> ModelVersions:
        fold = ModelVersions()
        for event in self.events[: self.read]:
            fold.apply_checkpoint(event["version"], {**event})
        for rollout in self.rollouts:
            fold.apply_rollout(rollout)
        return fold


def write_version(folder: Path) -> list[CheckpointFile]:
    """Write weights and training state of one version; return its files."""
    files = []
    for part in ("weights", "training"):
        path = folder / part / "x.safetensors"
        path.parent.mkdir(parents=True)
        path.write_text("x")
        files.append(new_checkpoint_file(path=f"{part}/x.safetensors", sha256="", size_bytes=1, role=part))
    return files
