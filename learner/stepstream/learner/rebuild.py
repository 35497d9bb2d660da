"""Rebuilds a published version from the log: its parent, the exact records, the recorded settings, the same bits.

Current settings decide only where Kafka and the registry are; everything that shaped the weights comes from the
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
from safetensors import safe_open

from stepstream.config import KafkaSettings, LearnerSettings, Settings
from stepstream.crypto.key_ring import codec_of
from stepstream.crypto.sealing import is_erased
from stepstream.learner.data.attempt import Attempt, LogPosition, attempt_of
from stepstream.learner.data.groups import key_of
from stepstream.learner.data.sequences import Limits
from stepstream.learner.lineage import Versions, read_versions, trained_places
from stepstream.learner.model.checkpoint import CheckpointFault, fill, folder_of, sha256_of, verify
from stepstream.learner.model.pretrained import WEIGHTS
from stepstream.learner.model.reference import reference_folder
from stepstream.learner.publish import INPUT, arithmetic, recorded
from stepstream.learner.training.trainer import Trainer
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Checkpoint

log = logging.getLogger(__name__)

Read = Callable[[set[LogPosition]], dict[LogPosition, Any]]
"""Reads labelled trajectories by place."""

_SILENCE_S = 60.0


class CannotRebuild(Exception):
    """Something that a version was made from is gone; the message says what."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a version is said to be, and what the log makes of it."""

    model: str
    version: int
    parent_version: int | None
    """None: a root, which is verified but has nothing to be rebuilt from."""
    updates: int
    trajectories: int
    published_sha256: str
    rebuilt_sha256: str
    differences: tuple[str, ...]
    """How this machine's arithmetic differs from the one that trained it, if it does."""
    apart: float | None
    """‖published − rebuilt‖ / ‖published − parent‖, over all weights; None where the published ones are gone."""

    @property
    def equal(self) -> bool:
        """Whether the weights are the same, bit for bit."""
        return self.published_sha256 == self.rebuilt_sha256


def rebuild(settings: Settings, model: str, version: int | None) -> Rebuilt:
    """Rebuilds the weights of `model`@`version` (None: the newest) and compares them with those published.

    Ancestors whose folders are gone or damaged are rebuilt too, from the nearest sound one.

    Raises:
        UnknownVersion: there is no such model or version; the message lists what there is.
        CannotRebuild: records that it was trained on are no longer in the log or were erased, or an ancestor came out
            different.
        CheckpointFault: the files of the lineage's root are gone or damaged.
        KafkaUnavailable: no broker answers within its deadline.
    """
    wait_for_kafka(settings.kafka)
    with closing(codec_of(settings)) as codec:
        versions = read_versions(settings.kafka, codec)
        if version is None:
            newest = versions.newest(model)
            version = newest["version"] if newest else -1
        checkpoint = versions.get(model, version)
        return rebuild_from(versions, checkpoint, lambda places: _read(settings.kafka, codec, places))


def rebuild_from(versions: Versions, checkpoint: Checkpoint, read: Read) -> Rebuilt:
    """As `rebuild`, from versions that have been folded and a way to read the log."""
    if checkpoint["parent_version"] is None:
        verify(folder_of(checkpoint["uri"]), checkpoint["files"])
        return _result(checkpoint, checkpoint["weights_sha256"], 0.0)
    parent, *older = versions.lineage(checkpoint)[1:]
    root = (older or [parent])[-1]
    to_rebuild = [checkpoint]
    while not _is_sound(parent):
        if not older:
            verify(folder_of(parent["uri"]), parent["files"])
        log.warning("%s is gone or damaged: rebuilding it too", parent["uri"])
        to_rebuild.append(parent)
        parent, *older = older
    with tempfile.TemporaryDirectory(prefix="stepstream-rebuild-") as scratch:
        folder = folder_of(parent["uri"])
        for each in reversed(to_rebuild):
            target = Path(scratch) / str(each["version"])
            _redo(each, folder, root, target, read)
            sha256 = sha256_of(target / WEIGHTS)
            if each is not checkpoint and sha256 != each["weights_sha256"]:
                raise CannotRebuild(
                    f"ancestor {each['model']}@{each['version']} came out as {sha256}, not {each['weights_sha256']}"
                )
            before, folder = folder, target
        return _result(checkpoint, sha256, _apart(checkpoint, folder, before))


def _redo(checkpoint: Checkpoint, parent: Path, root: Checkpoint, target: Path, read: Read) -> None:
    """Does the version's updates again, from the parent's folder into `target`."""
    config = _here(recorded(checkpoint["configuration"])[0])
    trainer = Trainer(parent, config, reference_folder(root, config))
    limits = trainer.limits(checkpoint["model"])
    records = read(trained_places([checkpoint], {}))
    for update in checkpoint["inputs"]:
        places = zip(update["partitions"], update["offsets"], strict=True)
        attempts = [_attempt(records, place, limits) for place in places]
        groups = [list(group) for _, group in groupby(attempts, key=key_of)]
        trainer.update(update["update"], groups, checkpoint["version"] - 1)
    target.mkdir()
    fill(trainer.snapshot(), parent, target)


def _apart(checkpoint: Checkpoint, rebuilt: Path, parent: Path) -> float | None:
    published = folder_of(checkpoint["uri"]) / WEIGHTS
    if not published.is_file() or sha256_of(published) != checkpoint["weights_sha256"]:
        return None
    apart = moved = 0.0
    with (
        safe_open(published, "pt") as now,
        safe_open(rebuilt / WEIGHTS, "pt") as again,
        safe_open(parent / WEIGHTS, "pt") as before,
    ):
        for name in now.keys():  # noqa: SIM118  # not a mapping
            weight = now.get_tensor(name).double()
            apart += float((weight - again.get_tensor(name)).square().sum())
            moved += float((weight - before.get_tensor(name)).square().sum())
    return math.sqrt(apart / moved) if moved else float(apart > 0)


def _attempt(records: dict[LogPosition, Any], place: LogPosition, limits: Limits) -> Attempt:
    if place not in records:
        raise CannotRebuild(f"partition {place[0]} offset {place[1]} of {INPUT} is no longer in the log")
    if is_erased(records[place]):
        raise CannotRebuild(f"the person of partition {place[0]} offset {place[1]} of {INPUT} was erased")
    return attempt_of(records[place], place, limits)


def _here(config: LearnerSettings) -> LearnerSettings:
    """The settings, with a device that this machine has."""
    return (
        config if config.device == "cpu" or torch.cuda.is_available() else config.model_copy(update={"device": "cpu"})
    )


def _is_sound(checkpoint: Checkpoint) -> bool:
    try:
        verify(folder_of(checkpoint["uri"]), checkpoint["files"])
    except CheckpointFault:
        return False
    return True


def _result(checkpoint: Checkpoint, sha256: str, apart: float | None) -> Rebuilt:
    config, then = recorded(checkpoint["configuration"])
    now = arithmetic(_here(config).device)
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


def _read(kafka: KafkaSettings, codec: Codec, places: Iterable[LogPosition]) -> dict[LogPosition, Any]:
    """The records at exactly these places; those that are gone are missing from the answer."""
    wanted: dict[int, set[int]] = {}
    for partition, offset in places:
        wanted.setdefault(partition, set()).add(offset)
    records: dict[LogPosition, Any] = {}
    with EventConsumer(kafka, codec) as consumer:
        ends = consumer.end_offsets(INPUT)
        until = {p: min(max(offsets) + 1, ends.get(p, 0)) for p, offsets in wanted.items()}
        start = {(INPUT, p): min(wanted[p]) if p in wanted else end for p, end in ends.items()}
        consumer.follow([INPUT], start)
        heard = time.monotonic()
        while any(consumer.position(INPUT, p) < end for p, end in until.items()):
            for event in consumer.poll(500, 0.05):
                heard = time.monotonic()
                if event.record is not None and event.offset in wanted.get(event.partition, ()):
                    records[event.partition, event.offset] = event.record
            if time.monotonic() - heard > _SILENCE_S:
                raise CannotRebuild(f"the broker sent nothing for {_SILENCE_S:g} s: try again when it answers")
    return records
