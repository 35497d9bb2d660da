"""Fold the `checkpoints` topic to the versions of each model: the newest one, its ancestors and its trained records."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from stepstream.config import KafkaSettings
from stepstream.learner.data.attempt import LogPosition
from stepstream.learner.decisions import Use
from stepstream.topics.catalogue import CHECKPOINTS, LABELED_TRAJECTORIES
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Checkpoint, Rollout
from stepstream.versions.layout import name_of, role_of
from stepstream.versions.rollouts import is_taken_back

log = logging.getLogger(__name__)


class UnknownVersion(Exception):
    """A model or version that no checkpoint event names; the message lists those that exist."""


@dataclass(slots=True)
class Versions:
    """All published versions, by model and number."""

    by_model: dict[str, dict[int, Checkpoint]] = field(default_factory=dict)

    def fold(self, checkpoint: Checkpoint) -> None:
        """Add a version; a later event for the same version replaces the earlier one."""
        self.by_model.setdefault(checkpoint["model"], {})[checkpoint["version"]] = checkpoint

    def newest(self, model: str) -> Checkpoint | None:
        """Return the version with the highest number; None while there is none."""
        versions = self.by_model.get(model)
        return versions[max(versions)] if versions else None

    def parent_of_next(self, model: str, rollout: Rollout | None) -> Checkpoint | None:
        """Return the version that the next one is trained from; None while there is none.

        It is the newest version, unless that one or an ancestor was taken back for harm: then the stable version, or
        the newest for which that does not hold while `stable` is not fixed.
        """
        newest = self.newest(model)
        if newest is None or rollout is None:
            return newest
        versions, taken_back = self.by_model[model], rollout["taken_back_versions"]
        if not is_taken_back(newest["version"], versions, taken_back):
            return newest
        if rollout["stable_version"] is not None:
            return versions.get(rollout["stable_version"], newest)
        sound = (number for number in versions if not is_taken_back(number, versions, taken_back))
        present = [number for number in sound if versions[number]["removed_at_us"] is None]
        return versions[max(present)] if present else newest

    def get(self, model: str, version: int) -> Checkpoint:
        """Return one version.

        Raises:
            UnknownVersion: it was never published.
        """
        versions = self.by_model.get(model)
        if not versions:
            known = ", ".join(sorted(self.by_model)) or "none"
            raise UnknownVersion(f"model '{model}' was never published; known models: {known}")
        if version not in versions:
            raise UnknownVersion(f"version {model}@{version} does not exist; known versions: {_ranges(versions)}")
        return versions[version]

    def find(self, model: str, version: int) -> Checkpoint | None:
        """Return one version; None: it was never published."""
        return self.by_model.get(model, {}).get(version)

    def present(self, model: str, numbers: Iterable[int]) -> list[Checkpoint]:
        """Return those of these versions that were published, in order."""
        found = self.by_model.get(model, {})
        return [found[number] for number in sorted(numbers) if number in found]

    def lineage(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """Return the version and its ancestors, newest first, down to the root.

        Raises:
            UnknownVersion: an ancestor was never published.
        """
        line = [checkpoint]
        while (parent := line[-1]["parent_version"]) is not None:
            line.append(self.get(checkpoint["model"], parent))
        return line


def warn_without_training(checkpoint: Checkpoint) -> None:
    """Warn if a trained version, from which training continues, has lost its training state to retention."""
    if checkpoint["parent_version"] is not None and all(role_of(file) != "training" for file in checkpoint["files"]):
        log.warning(
            "%s has no training state any more: the optimizer's state begins anew; learner.keep_training sets how many "
            "versions keep theirs",
            name_of(checkpoint),
        )


def of_log(line: Iterable[Checkpoint], prefix: str) -> list[Checkpoint]:
    """Return the versions whose positions are of the log with this prefix; `topics copy` copies others."""
    return [version for version in line if version["input_topic"] in ("", prefix + LABELED_TRAJECTORIES)]


def uses_of(line: Iterable[Checkpoint], start: dict[int, int]) -> dict[LogPosition, list[Use]]:
    """Return the updates of each log position at or after `start` (offset by partition) that a lineage trained on."""
    uses: dict[LogPosition, list[Use]] = {}
    for checkpoint in line:
        for update in checkpoint["inputs"]:
            use = Use(update["update"], checkpoint["version"] - 1, checkpoint["version"])
            for partition, offset in zip(update["partitions"], update["offsets"], strict=True):
                if offset >= start.get(partition, 0):
                    uses.setdefault((partition, offset), []).append(use)
    return uses


def left_out(line: Iterable[Checkpoint], newest: int) -> frozenset[int]:
    """Return the numbers after a line's root, up to `newest`, that belong to versions which were taken back."""
    numbers = {checkpoint["version"] for checkpoint in line}
    return frozenset(range(min(numbers), newest + 1)) - numbers


def trained_positions(line: Iterable[Checkpoint], start: dict[int, int]) -> set[LogPosition]:
    """Return the log positions at or after `start` (offset by partition) that a lineage trained on."""
    return set(uses_of(line, start))


def offsets_of(checkpoint: Checkpoint) -> dict[int, int]:
    """Return the offset by partition at which a learner that continues from the version starts to read."""
    return {position["partition"]: position["offset"] for position in checkpoint["resume_offsets"]}


def read_versions(kafka: KafkaSettings, codec: Codec) -> Versions:
    """Read the topic up to its current end and fold it. Blocks until then.

    Raises:
        KafkaException: the topic does not exist, or no broker answers.
    """
    versions = Versions()
    with EventConsumer(kafka, codec) as consumer:
        consumer.follow([CHECKPOINTS])
        while not consumer.is_caught_up():
            for event in consumer.poll(500, 0.05):
                if event.record is not None:
                    versions.fold(event.record)
    return versions


def _ranges(numbers: Iterable[int]) -> str:
    """Return `0-3, 7` for 0, 1, 2, 3 and 7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
