"""Rebuild a published version bit for bit from its parent, the exact records of the log and the recorded settings.

Current settings only give the addresses of Kafka and the registry. Everything that shaped the weights comes from the
checkpoint event.
"""

import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from stepstream.config import KafkaSettings, LearnerSettings, Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.crypto.sealing import is_erased
from stepstream.learner.data.attempt import Attempt, LogPosition, attempt_of, without_gaps
from stepstream.learner.data.groups import key_of
from stepstream.learner.data.sequences import Limits
from stepstream.learner.lineage import Versions, left_out, of_log, read_versions, trained_positions
from stepstream.learner.model import lora
from stepstream.learner.model.checkpoint import StoredWeights, describe, write_files
from stepstream.learner.model.reference import reference_folder
from stepstream.learner.provenance import arithmetic, parse_configuration
from stepstream.learner.training.trainer import Trainer
from stepstream.topics.catalogue import LABELED_TRAJECTORIES
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Checkpoint
from stepstream.versions.fetch import fetch_whole
from stepstream.versions.layout import VersionRejected, name_of, role_of, weights_sha256

log = logging.getLogger(__name__)

Read = Callable[[set[LogPosition]], dict[LogPosition, Any]]
"""Reads labelled trajectories by log position."""

_SILENCE_S = 60.0
"""Seconds without any record after which reading fails."""


class CannotRebuild(Exception):
    """An input of the version is gone, or an ancestor came out different; the message names it."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A published version compared with its rebuilt weights."""

    model: str
    version: int
    parent_version: int | None
    """None: a root, whose files are only verified."""
    updates: int
    trajectories: int
    published_sha256: str
    rebuilt_sha256: str
    differences: tuple[str, ...]
    """Differences between this machine's arithmetic and that of the training; empty: none."""
    apart: float | None
    """‖published − rebuilt‖ / ‖published − parent‖, over all weights; None: the published weights are gone."""

    @property
    def equal(self) -> bool:
        """True if the weights are the same, bit for bit."""
        return self.published_sha256 == self.rebuilt_sha256


def rebuild(settings: Settings, model: str, version: int | None) -> Rebuilt:
    """Rebuild the weights of `model`@`version` (None: the newest) and compare them with the published ones.

    Ancestors whose folders are gone or damaged are rebuilt too, from the nearest intact one.

    Raises:
        UnknownVersion: the model or version does not exist; the message lists the known ones.
        CannotRebuild: a trained record was erased or is no longer in the log, or an ancestor came out different.
        VersionRejected: the files of the lineage's root are gone or damaged.
        KafkaUnavailable: no broker answers within its deadline.
    """
    wait_for_kafka(settings.kafka)
    with closing(sealing_codec(settings)) as codec:
        versions = read_versions(settings.kafka, codec)
        if version is None:
            newest = versions.newest(model)
            version = newest["version"] if newest else -1
        checkpoint = versions.get(model, version)
        prefix = settings.kafka.prefix
        return rebuild_from(versions, checkpoint, lambda positions: _read_log(settings.kafka, codec, positions), prefix)


def rebuild_from(versions: Versions, checkpoint: Checkpoint, read: Read, prefix: str = "") -> Rebuilt:
    """Rebuild a version, see `rebuild`, with folded versions and a function that reads the log with this prefix."""
    with tempfile.TemporaryDirectory(prefix="stepstream-rebuild-") as scratch:
        return _Rebuild(versions, read, Path(scratch), prefix).run(checkpoint)


class _Rebuild:
    """Rebuilds one version in a temporary folder."""

    def __init__(self, versions: Versions, read: Read, scratch: Path, prefix: str) -> None:
        self._versions, self._read, self._scratch, self._prefix = versions, read, scratch, prefix

    def run(self, checkpoint: Checkpoint) -> Rebuilt:
        if checkpoint["parent_version"] is None:
            self._fetch(checkpoint)
            return _result(checkpoint, checkpoint["weights_sha256"], 0.0)
        parent, *older = self._versions.lineage(checkpoint)[1:]
        root = (older or [parent])[-1]
        to_rebuild = [checkpoint]
        while (folder := self._intact(parent)) is None:
            if not older:
                self._fetch(parent)
            log.warning("%s is gone or damaged: rebuilding it too", parent["uri"])
            to_rebuild.append(parent)
            parent, *older = older
        for each in reversed(to_rebuild):
            target = self._scratch / str(each["version"])
            self._repeat_updates(each, folder, root, target)
            sha256 = _digest(each, target)
            if each is not checkpoint and sha256 != each["weights_sha256"]:
                raise CannotRebuild(
                    f"ancestor {each['model']}@{each['version']} came out as {sha256}, not {each['weights_sha256']}"
                )
            before, folder = folder, target
        return _result(checkpoint, sha256, self._relative_difference(checkpoint, folder, before))

    def _repeat_updates(self, checkpoint: Checkpoint, parent: Path, root: Checkpoint, target: Path) -> None:
        """Repeat the version's updates from the parent's folder and write the result to `target`, with all weights."""
        if not of_log([checkpoint], self._prefix):
            raise CannotRebuild(
                f"{name_of(checkpoint)} was trained on {checkpoint['input_topic']}, of which this log is a copy with "
                "other offsets: rebuild it under that prefix"
            )
        config = _for_one_process(parse_configuration(checkpoint["configuration"])[0])
        trainer = Trainer(parent, config, reference_folder(root, config, self._fetch))
        limits = trainer.limits(checkpoint["model"])
        gaps = left_out(self._versions.lineage(checkpoint)[1:], checkpoint["version"] - 1)
        records = self._read(trained_positions([checkpoint], {}))
        for update in checkpoint["inputs"]:
            positions = zip(update["partitions"], update["offsets"], strict=True)
            attempts = [
                without_gaps(_attempt(records, position, limits), gaps, root["version"]) for position in positions
            ]
            groups = [list(group) for _, group in groupby(attempts, key=key_of)]
            trainer.update(update["update"], groups, checkpoint["version"] - 1)
        target.mkdir()
        write_files(trainer.snapshot(), parent, target)

    def _relative_difference(self, checkpoint: Checkpoint, rebuilt: Path, parent: Path) -> float | None:
        published = self._intact(checkpoint)
        if published is None:
            return None
        now, again, before = (StoredWeights(folder) for folder in (published, rebuilt, parent))
        apart = moved = 0.0
        for name in now:
            weight = now[name].double()
            apart += float((weight - again[name]).square().sum())
            moved += float((weight - before[name]).square().sum())
        return math.sqrt(apart / moved) if moved else float(apart > 0)

    def _fetch(self, checkpoint: Checkpoint) -> Path:
        return fetch_whole(checkpoint, self._versions.find, self._scratch / "cache")

    def _intact(self, checkpoint: Checkpoint) -> Path | None:
        """Return the folder of a version; None if it, or the state to train on from it, is gone or damaged."""
        trained = checkpoint["parent_version"] is not None
        if trained and all(role_of(file) != "training" for file in checkpoint["files"]):
            return None
        try:
            return self._fetch(checkpoint)
        except VersionRejected:
            return None


def _digest(checkpoint: Checkpoint, folder: Path) -> str:
    """Return the digest of a rebuilt version, of the files that `checkpoint` has."""
    files = describe(folder)
    if checkpoint["format"] == "lora":
        return next(file["sha256"] for file in files if file["path"] == f"training/{lora.ADAPTER}/{lora.WEIGHTS}")
    return weights_sha256(files)


def _attempt(records: dict[LogPosition, Any], position: LogPosition, limits: Limits) -> Attempt:
    name = f"partition {position[0]} offset {position[1]} of {LABELED_TRAJECTORIES}"
    if position not in records:
        raise CannotRebuild(f"{name} is no longer in the log")
    if is_erased(records[position]):
        raise CannotRebuild(f"the person of {name} was erased")
    return attempt_of(records[position], position, limits)


def _for_one_process(config: LearnerSettings) -> LearnerSettings:
    """Return the settings for one process, with `cpu` as device if this machine lacks the recorded one."""
    lacks = config.device != "cpu" and not torch.cuda.is_available()
    alone = {"shard_ranks": 0, "sequence_parallel": 1}
    return config.model_copy(update=alone | ({"device": "cpu"} if lacks else {}))


def _result(checkpoint: Checkpoint, sha256: str, apart: float | None) -> Rebuilt:
    config, then = parse_configuration(checkpoint["configuration"])
    now = arithmetic(_for_one_process(config).device)
    return Rebuilt(
        model=checkpoint["model"],
        version=checkpoint["version"],
        parent_version=checkpoint["parent_version"],
        updates=len(checkpoint["inputs"]),
        trajectories=sum(len(update["offsets"]) for update in checkpoint["inputs"]),
        published_sha256=checkpoint["weights_sha256"],
        rebuilt_sha256=sha256,
        differences=tuple(f"{key} was {then[key]}, is {now.get(key)}" for key in then if then[key] != now.get(key)),
        apart=apart,
    )


def _read_log(kafka: KafkaSettings, codec: Codec, positions: Iterable[LogPosition]) -> dict[LogPosition, Any]:
    """Return the records at these positions, without those that the log no longer has. Blocks until all are read.

    Raises:
        CannotRebuild: the broker sent nothing for a minute.
    """
    wanted: dict[int, set[int]] = {}
    for partition, offset in positions:
        wanted.setdefault(partition, set()).add(offset)
    records: dict[LogPosition, Any] = {}
    with EventConsumer(kafka, codec) as consumer:
        ends = consumer.end_offsets(LABELED_TRAJECTORIES)
        until = {p: min(max(offsets) + 1, ends.get(p, 0)) for p, offsets in wanted.items()}
        start = {(LABELED_TRAJECTORIES, p): min(wanted[p]) if p in wanted else end for p, end in ends.items()}
        consumer.follow([LABELED_TRAJECTORIES], start)
        last_event_s = time.monotonic()
        while any(consumer.position(LABELED_TRAJECTORIES, p) < end for p, end in until.items()):
            for event in consumer.poll(500, 0.05):
                last_event_s = time.monotonic()
                if event.record is not None and event.offset in wanted.get(event.partition, ()):
                    records[event.partition, event.offset] = event.record
            if time.monotonic() - last_event_s > _SILENCE_S:
                raise CannotRebuild(f"the broker sent nothing for {_SILENCE_S:g} s: try again when it answers")
    return records
