"""`stepstream models` and `stepstream rebuild`: publish a base model, list versions, rebuild one from the log."""

import json
import sys
from contextlib import AbstractContextManager, closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from stepstream.cli import model_check, model_prune, model_rollouts
from stepstream.config import Settings, load


@click.group()
def models() -> None:
    """Published versions of models, and which of them serve."""


for _command in model_rollouts.COMMANDS:
    models.add_command(_command)
models.add_command(model_check.check)
models.add_command(model_prune.prune)


@models.command("publish")
@click.argument("source")
@click.option("--model", help="Name of the model; default: learner.model.")
@click.option("--from-start", is_flag=True, help="Train on the whole log, not only on later records.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def publish(source: str, model: str | None, from_start: bool, as_json: bool) -> None:
    """Publish SOURCE as the root of a new lineage.

    SOURCE is a causal language model in Hugging Face's format: a folder, or a name on the hub.
    """
    from stepstream.learner.model.checkpoint import CheckpointFault
    from stepstream.learner.model.pretrained import CannotTrain, model_folder
    from stepstream.learner.publish import publish_root
    from stepstream.versions.layout import is_inside

    name = model or load().learner.model
    if not is_inside(name):
        raise click.ClickException(f"the name '{name}' leaves the folder of versions: give one without '..' and '//'")
    try:
        with model_folder(source) as folder, _log() as settings:
            checkpoint = publish_root(settings, folder, name, from_start=from_start)
    except (CannotTrain, CheckpointFault) as error:
        raise click.ClickException(str(error)) from None
    row = _row(checkpoint)
    click.echo(json.dumps(row) if as_json else f"published {row['name']} at {row['uri']}")


@models.command("keygen")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def keygen(file: Path, as_json: bool) -> None:
    """Write a new private key to FILE and print its public key.

    For versions, give FILE to the learner as learner.signing_key and the public key to every worker in
    inference.trusted_keys. For answers to decisions, the settings are control.signing_key and control.trusted_keys.
    """
    from stepstream.crypto.signatures import create_key

    try:
        public = create_key(file)
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
    click.echo(json.dumps({"private_key": str(file), "public_key": public}) if as_json else public)


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_versions(as_json: bool) -> None:
    """List every published version."""
    from stepstream.learner.lineage import read_versions
    from stepstream.topics.client import wait_for_kafka
    from stepstream.topics.codec import Codec

    with _log() as settings:
        wait_for_kafka(settings.kafka)
        with closing(Codec(settings)) as codec:
            versions = read_versions(settings.kafka, codec)
    rows = [_row(c) for _, by in sorted(versions.by_model.items()) for _, c in sorted(by.items())]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        parent = "root" if row["parent_version"] is None else f"from {row['parent_version']}"
        click.echo(
            f"{row['name']:<16} {parent:<10} updates {row['updates']:<6} {row['published_at']}  {row['weights_sha256']}"
        )


@click.command()
@click.argument("name", metavar="MODEL@VERSION")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rebuild(name: str, as_json: bool) -> None:
    """Rebuild MODEL@VERSION (or MODEL@latest) from the log and compare the weights with the published ones.

    Exit status 0: equal bit for bit; 1: different, or the rebuild is impossible.
    """
    from stepstream.learner.data.sequences import Invalid
    from stepstream.learner.lineage import UnknownVersion
    from stepstream.learner.rebuild import CannotRebuild
    from stepstream.learner.rebuild import rebuild as rebuild_version
    from stepstream.versions.layout import VersionRejected

    model, version = _parse(name)
    try:
        with _log() as settings:
            result = rebuild_version(settings, model, version)
    except (UnknownVersion, CannotRebuild, VersionRejected, Invalid) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(asdict(result) | {"equal": result.equal}))
    else:
        if result.parent_version is None:
            click.echo(
                f"{result.model}@{result.version} is the root of its lineage: its files match their published digests"
            )
        else:
            click.echo(
                f"{result.model}@{result.version} from {result.model}@{result.parent_version}: {result.updates} "
                f"updates on {result.trajectories} trajectories"
            )
        click.echo(f"published {result.published_sha256}")
        click.echo(f"rebuilt   {result.rebuilt_sha256}")
        click.echo("equal, bit for bit" if result.equal else f"DIFFERENT{_distance_text(result.apart)}")
        for difference in result.differences:
            click.echo(f"this machine differs from the learner's: {difference}", err=True)
    sys.exit(0 if result.equal else 1)


def _distance_text(apart: float | None) -> str:
    return "" if apart is None else f": the distance is {apart:.2g} of the version's distance from its parent"


def _log() -> AbstractContextManager[Settings]:
    """Start the broker if it is down, reporting that on standard error."""
    from stepstream.embedded.stack import ensure_broker

    return ensure_broker(load(), lambda line: click.echo(line, err=True))


def _parse(name: str) -> tuple[str, int | None]:
    from stepstream.versions.layout import read_name

    model = name.removesuffix("@latest")
    named = (model, None) if model and model != name else read_name(name)
    if named is None:
        raise click.BadParameter(f"'{name}' is not MODEL@VERSION: write it like demo@7 or demo@latest")
    return named


def _row(checkpoint: Any) -> dict[str, Any]:
    published = datetime.fromtimestamp(checkpoint["occurred_at_us"] / 1e6, UTC)
    return {
        "name": f"{checkpoint['model']}@{checkpoint['version']}",
        "parent_version": checkpoint["parent_version"],
        "updates": checkpoint["updates"],
        "published_at": published.isoformat(timespec="seconds"),
        "uri": checkpoint["uri"],
        "weights_sha256": checkpoint["weights_sha256"],
        "code_version": checkpoint["code_version"],
        "metrics": checkpoint["metrics"],
    }
