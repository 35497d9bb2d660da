"""The versions of a model, as a fold over the `checkpoints` topic: which is newest, and what it was trained on."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepstream.config import KafkaSettings
from stepstream.learner.data.attempt import LogPosition
from stepstream.learner.decisions import Use
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Checkpoint

TOPIC = "checkpoints"


class UnknownVersion(Exception):
    """A model or version that no checkpoint event names; the message lists those that exist."""


@dataclass(slots=True)
class Versions:
    """All published versions, by model and number."""

    by_model: dict[str, dict[int, Checkpoint]] = field(default_factory=dict)

    def fold(self, checkpoint: Checkpoint) -> None:
        """A later event for the same version replaces the earlier one."""
        self.by_model.setdefault(checkpoint["model"], {})[checkpoint["version"]] = checkpoint

    def newest(self, model: str) -> Checkpoint | None:
        """Version with the highest number; None while there is none."""
        versions = self.by_model.get(model)
        return versions[max(versions)] if versions else None

    def get(self, model: str, version: int) -> Checkpoint:
        """One version.

        Raises:
            UnknownVersion: it was never published.
        """
        versions = self.by_model.get(model)
        if not versions:
            known = ", ".join(sorted(self.by_model)) or "none"
            raise UnknownVersion(f"no model '{model}' was ever published; known: {known}")
        if version not in versions:
            raise UnknownVersion(f"no version {model}@{version}; there are {_ranges(versions)}")
        return versions[version]

    def lineage(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """The version and its ancestors, newest first, down to the root.

        Raises:
            UnknownVersion: an ancestor was never published.
        """
        line = [checkpoint]
        while (parent := line[-1]["parent_version"]) is not None:
            line.append(self.get(checkpoint["model"], parent))
        return line


def uses_of(line: Iterable[Checkpoint], start: dict[int, int]) -> dict[LogPosition, list[Use]]:
    """What a lineage trained on at or after `start` (offset by partition), and in which updates, by place."""
    uses: dict[LogPosition, list[Use]] = {}
    for checkpoint in line:
        for update in checkpoint["inputs"]:
            use = Use(update["update"], checkpoint["version"] - 1, checkpoint["version"])
            for partition, offset in zip(update["partitions"], update["offsets"], strict=True):
                if offset >= start.get(partition, 0):
                    uses.setdefault((partition, offset), []).append(use)
    return uses


def trained_places(line: Iterable[Checkpoint], start: dict[int, int]) -> set[LogPosition]:
    """Places that a lineage trained on, at or after `start` (offset by partition)."""
    return set(uses_of(line, start))


def offsets_of(checkpoint: Checkpoint) -> dict[int, int]:
    """Where a learner that continues from the version starts to read, by partition."""
    return {place["partition"]: place["offset"] for place in checkpoint["resume_offsets"]}


def read_versions(kafka: KafkaSettings, codec: Codec) -> Versions:
    """Folds the topic as it is now.

    Raises:
        KafkaException: the topic does not exist, or no broker answers.
    """
    versions = Versions()
    with EventConsumer(kafka, codec) as consumer:
        consumer.follow([TOPIC])
        while not consumer.caught_up():
            for event in consumer.poll(500, 0.05):
                if event.record is not None:
                    versions.fold(event.record)
    return versions


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7` for 0, 1, 2, 3 and 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
