"""`stepstream watch`: print the state of models, then each change of versions, decisions and workers."""

import json
from contextlib import suppress
from datetime import UTC, datetime

import click

from stepstream.config import load
from stepstream.versions.updates import ModelUpdate


@click.command()
@click.option("--model", help="Name of the model; default: all.")
@click.option("--once", is_flag=True, help="Print the state and end.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object.")
def watch(model: str | None, once: bool, as_json: bool) -> None:
    """Print the state of models, then each change, one line each, until interrupted.

    Changes are published and removed versions, promotions, rollbacks, canaries and pins, and what each worker serves.
    """
    from stepstream.cli.interrupt import Interrupted, interruptible
    from stepstream.embedded.stack import ensure_broker
    from stepstream.sdk.model_updates import subscribe_models

    def show(update: ModelUpdate) -> None:
        click.echo(json.dumps(update.fields()) if as_json else _text(update))

    with (
        suppress(Interrupted),
        interruptible(),
        ensure_broker(load(), lambda line: click.echo(line, err=True)) as settings,
        subscribe_models(model, settings=settings) as updates,
    ):
        for update in updates.state():
            show(update)
        if not once:
            for update in updates:
                show(update)


def _text(update: ModelUpdate) -> str:
    """Return a line for people: time, what changed, and what serves now."""
    served = update.served
    stable = "no version" if served.stable is None else f"stable {served.stable}"
    now = [stable + (" (follows the newest)" if served.follows_newest else "")]
    if served.canary is not None:
        now.append(f"canary {served.canary} on {served.canary_share:g}")
    name = update.model if update.version is None else f"{update.model}@{update.version}"
    if update.change == "state":
        return f"{'now':<20} {'state':<10} {update.model}: {', '.join(now)}"
    at = datetime.fromtimestamp(update.occurred_at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if update.change == "worker":
        tracks = ", ".join(f"{track} {version}" for track, version in update.tracks.items()) or "no version"
        what = f"{update.model}: {update.worker} {update.state}: {tracks}"
    else:
        what = f"{name}: {', '.join(now)}"
    return f"{at:<20} {update.change:<10} {what}" + (f" ({update.reason})" if update.reason else "")
