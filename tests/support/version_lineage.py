"""Train versions of a tiny model one update at a time, without Kafka."""

from pathlib import Path
from typing import Any

import torch
from labelled_records import group_of
from tiny_families import tiny_of

from stepstream.config import LearnerSettings, Settings
from stepstream.core.object_store import upload
from stepstream.core.process import Stop
from stepstream.learner.data.attempt import LogPosition, attempt_of
from stepstream.learner.lineage import Versions
from stepstream.learner.model import lora
from stepstream.learner.model.checkpoint import StoredWeights, cache_folder, write_root
from stepstream.learner.publish import publish_version
from stepstream.learner.training.trainer import Trainer
from stepstream.topics.events import Checkpoint, new_checkpoint, new_update_input
from stepstream.topics.ids import new_event_id
from stepstream.versions.fetch import fetch_version, fetch_whole
from stepstream.versions.layout import weights_sha256
from stepstream.versions.shared_memory import SharedVersions


class Log:
    """A producer whose events are at once durable."""

    def __init__(self) -> None:
        self.sent: list[Checkpoint] = []

    def __len__(self) -> int:
        return 0

    def send(self, _topic: str, _key: str, record: Any) -> None:
        self.sent.append(record)

    def flush(self) -> None: ...


def published_weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return the weights that the trainer would publish now, in float32."""
    weights = {name: weight.detach() for name, weight in trainer.policy.model.named_parameters()}
    if not trainer.policy.snapshot().adapter:
        return weights
    return lora.merged(weights, trainer.policy.snapshot().adapter or {})


class Lineage:
    """A learner that trains one update for each version."""

    def __init__(self, data: Path, *, root_in_store: bool = False, **fields: Any) -> None:
        fields = {"checkpoints": str(data / "published"), **fields}
        learner = LearnerSettings(preset="tiny", model="m", warmup_updates=0, learning_rate=1e-3, **fields)
        self.settings = Settings(learner=learner, paths={"data": data / "data"})
        self.versions, self.log = Versions(), Log()
        self.shared: SharedVersions | None = None
        self.records: dict[LogPosition, Any] = {}
        files = write_root(tiny_of("llama", data / "given", torch.bfloat16), data / "root")
        uri = (data / "root").as_uri()
        if root_in_store:
            uri = f"{fields['checkpoints']}/m/0-c0"
            upload(data / "root", uri)
        root = new_checkpoint(
            event_id="c0", occurred_at_us=0, model="m", version=0, uri=uri,
            weights_sha256=weights_sha256(files), files=files, code_version="",
        )  # fmt: skip
        self.versions.fold(root)
        self.start(root)

    def start(self, checkpoint: Checkpoint) -> None:
        """Continue from a version, as a restarted learner does."""
        config = self.settings.learner
        self.base = checkpoint
        self.folder = fetch_whole(checkpoint, self.versions.find, cache_folder(self.settings))
        self.trainer = Trainer(self.folder, config)
        continues = lora.continues(self.folder, config)
        self._adapter_base = (
            (checkpoint["base_version"] if continues else checkpoint["version"]) if config.lora_rank else None
        )

    def publish(self, number: int | None = None) -> Checkpoint:
        """Publish the next version; `number` differs from the base's successor after versions were taken back."""
        number = self.base["version"] + 1 if number is None else number
        limits = self.trainer.limits("m")
        records = {(0, 10 * number + n): record for n, record in enumerate(group_of(f"g{number}", 4, model="m"))}
        self.records |= records
        self.trainer.update(number, [[attempt_of(each, at, limits) for at, each in records.items()]], number - 1)
        self.base, self.folder = publish_version(
            self.settings, self.log, self.trainer.snapshot(), self.base, self.folder,  # type: ignore[arg-type]
            event_id=new_event_id(),
            inputs=[new_update_input(update=number, partitions=[0] * 4, offsets=[at for _, at in records])],
            resume_offsets={}, metrics={}, stop=Stop(), adapter_base=self._adapter_base,
            shared=self.shared, number=number,
        )  # fmt: skip
        self.versions.fold(self.base)
        return self.base

    def served(self, checkpoint: Checkpoint, cache: Path) -> dict[str, torch.Tensor]:
        stored = StoredWeights(fetch_version(checkpoint, self.versions.find, cache))
        return {name: stored[name] for name in stored}
