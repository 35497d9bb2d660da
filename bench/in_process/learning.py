"""Train a policy in memory with the learner's trainer and buffer, from the demo's base model."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from in_process.conversation import MODEL, Conversation
from stepstream.config import Settings
from stepstream.demo.base import prepare
from stepstream.learner.data.attempt import Attempt, attempt_of
from stepstream.learner.data.learning_signal import learning_signal_of
from stepstream.learner.data.replay_buffer import ReplayBuffer
from stepstream.learner.data.requirements import requirements_of
from stepstream.learner.data.sampler import sampler_of
from stepstream.learner.training.trainer import Trainer
from stepstream.services.inference.llama import LlamaWeights
from stepstream.versions.layout import weights_folder


def base_model(settings: Settings) -> Path:
    """Return the demo's base model for these settings; the first call makes it in `settings.paths.data`."""
    return prepare(settings)


class Policy:
    """State of the learner between updates, without Kafka: trainer, buffer, version."""

    def __init__(self, settings: Settings, base: Path) -> None:
        self.config = settings.learner
        self.trainer = Trainer(base, self.config)
        self.limits = self.trainer.limits(MODEL)
        self.version = 0
        self.updates = 0
        self.figures: list[dict[str, float]] = []
        """Figures of the updates since the last version."""
        self._offset = 0
        self.buffer = ReplayBuffer(
            group_size=self.config.group_size,
            wait_s=1e9,
            staleness_bound=self.config.staleness_bound,
            root=0,
            version=0,
            positions={0: 0},
            reuse=self.config.reuse,
            sampler=sampler_of(self.config),
            signal=learning_signal_of(self.config),
            requirements=requirements_of(self.config),
        )

    def read(self, conversations: Iterable[Conversation], now_s: float = 0.0) -> list[Attempt]:
        """Label the conversations and add them to the buffer, as if read from the topic in this order."""
        attempts = []
        for conversation in conversations:
            attempts.append(attempt_of(conversation.label(), (0, self._offset), self.limits))
            self.buffer.add(attempts[-1], now_s)
            self._offset += 1
        return attempts

    def missing_groups(self) -> int:
        """Return the number of groups that the next version still needs."""
        return self.config.groups_per_update * self.config.updates_per_checkpoint - self.buffer.ready()

    def update(self) -> bool:
        """Run one update; return False if the buffer has too few groups."""
        groups = self.buffer.take(self.config.groups_per_update, self.updates + 1)
        if groups is None:
            return False
        self.updates += 1
        self.figures.append(self.trainer.update(self.updates, groups, self.version))
        return True

    def publish(self) -> LlamaWeights:
        """Publish the next version; return it as the inference worker reads it."""
        self.version += 1
        self.figures.clear()
        self.buffer.advance(self.version)
        with tempfile.TemporaryDirectory() as folder:
            self.trainer.snapshot().write(Path(folder))
            return LlamaWeights(weights_folder(Path(folder)))
