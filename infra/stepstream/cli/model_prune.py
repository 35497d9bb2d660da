"""`stepstream models prune`: remove the files of old versions that nothing serves or needs."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import click

from stepstream.cli.model_rollouts import open_log, wait_read
from stepstream.config import Settings
from stepstream.topics.events import Checkpoint
from stepstream.versions.retention import Removals, announce_removals, is_named, removals_now


@click.command()
@click.argument("model")
@click.option("--keep-versions", type=click.IntRange(min=0), help="Default: learner.keep_versions.")
@click.option("--keep-training", type=click.IntRange(min=0), help="Default: learner.keep_training.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def prune(model: str, keep_versions: int | None, keep_training: int | None, dry_run: bool, as_json: bool) -> None:
    """Remove the files of MODEL's old versions, and the training state of more of them.

    Kept are the newest versions, those that a worker serves, that a track or a rollback names, that are pinned, the
    roots of the kept versions' lineages, and what a kept delta or adapters are completed from. Each removal is an event
    before it is done.
    """
    from stepstream.topics.catalogue import WORKER_STATUS
    from stepstream.topics.ids import now_us
    from stepstream.topics.table import Table
    from stepstream.versions.follower import VersionFollower
    from stepstream.versions.worker_agreement import loaded_versions

    with open_log() as settings, VersionFollower(settings) as versions, Table(settings, WORKER_STATUS) as workers:
        wait_read(versions, workers)
        checkpoints = versions.checkpoints(model)
        every_s, learner = settings.inference.status_every_s, settings.learner
        statuses = workers.items().values()
        loaded = loaded_versions(statuses, model, now_us(), every_s, written_us=workers.written_us)

        def removals_by_log() -> Removals:
            wait_read(versions, workers)
            return removals_now(
                versions.checkpoints(model) | checkpoints,  # a version published meanwhile may need a removed one
                versions.served(model),
                loaded,
                keep_versions=learner.keep_versions if keep_versions is None else keep_versions,
                keep_training=learner.keep_training if keep_training is None else keep_training,
            )

        removals = removals_by_log()
        if not dry_run:
            removals = _remove(settings, model, removals, removals_by_log)
    _print(model, removals, dry_run=dry_run, as_json=as_json)


def _remove(settings: Settings, model: str, removals: Removals, removals_by_log: Callable[[], Removals]) -> Removals:
    """Announce the removals, and delete the files once the events are durable; return what was removed."""
    from contextlib import closing

    from stepstream.core.object_store import remove
    from stepstream.learner.lineage import read_versions
    from stepstream.topics.catalogue import CHECKPOINTS
    from stepstream.topics.codec import Codec
    from stepstream.topics.ids import now_us
    from stepstream.topics.producer import EventProducer
    from stepstream.versions.layout import name_of

    with closing(Codec(settings)) as codec:
        # Whole events: a follower keeps them without the trained positions, which a rebuild needs.
        checkpoints = read_versions(settings.kafka, codec).by_model.get(model, {})
        producer = EventProducer(settings.kafka, codec, "models-prune")

        def publish(events: Iterable[Checkpoint]) -> None:
            for event in events:
                producer.send(CHECKPOINTS, name_of(event), event)
            producer.flush()

        removed = announce_removals(checkpoints, removals, now_us(), publish, removals_by_log)
    checkpoints |= {checkpoint["version"]: checkpoint for checkpoint, _ in removed}
    for checkpoint, part in removed:
        if is_named(checkpoint, part, checkpoints.values()):
            continue  # another version has the same files
        remove(checkpoint["uri"], part)
    return Removals(
        tuple(checkpoint["version"] for checkpoint, part in removed if not part),
        tuple(checkpoint["version"] for checkpoint, part in removed if part),
    )


def _print(model: str, removals: Removals, *, dry_run: bool, as_json: bool) -> None:
    row: dict[str, Any] = {
        "model": model,
        "versions": list(removals.versions),
        "training": list(removals.training),
        "dry_run": dry_run,
    }
    if as_json:
        click.echo(json.dumps(row))
        return
    verb = "would remove" if dry_run else "removed"
    for kind, numbers in (("all files", removals.versions), ("the training state", removals.training)):
        text = ", ".join(str(number) for number in numbers) or "no version"
        click.echo(f"{verb} {kind} of {text}")
