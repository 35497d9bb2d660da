"""`stepstream models promote`, `rollback`, `canary`, `pin`, `unpin`, `follow`, `status`: decide what serves a model.

Each command reads the newest decision, writes the next one to the topic `rollouts` and prints what it replaced. If two
people decide at once, the later write is in force.
"""

import getpass
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from stepstream.config import Settings, load
from stepstream.versions import rollout_actions
from stepstream.versions.layout import read_name
from stepstream.versions.rollout_actions import Decision, RolloutRefused
from stepstream.versions.rollouts import ModelVersions, ServedVersions

_READ_S = 30.0
_POLL_S = 0.1

_Decide = Callable[[str, ModelVersions], Decision]
_Function = Callable[..., None]


def _writes(command: _Function) -> _Function:
    """Add the options of every command that writes a decision."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--wait",
            "wait_s",
            type=click.FloatRange(min=0),
            help="Seconds to wait until every live worker serves what the log says; exit status 1 if one does not.",
        ),
        click.option("--reason", default="", help="Reason for the decision, for the log."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("name", metavar="MODEL@VERSION")
@_writes
def promote(name: str, **options: Any) -> None:
    """Serve MODEL@VERSION on the track stable, until the next promotion."""
    model, version = _parse(name)
    _decide(model, lambda model, versions: rollout_actions.promote(model, versions, version), **options)


@click.command()
@click.argument("model")
@click.option("--to", type=int, help="Version to return to; default: the one before, see below.")
@_writes
def rollback(model: str, to: int | None, **options: Any) -> None:
    """Take back what was put out last.

    While a canary runs, end it. Else return the track stable to the version before the newest promotion; without
    one, to the parent of the version that it serves. With --to, do both. The stable version is then fixed until
    `promote` or `follow`.
    """
    _decide(model, lambda model, versions: rollout_actions.rollback(model, versions, to), **options)


@click.command()
@click.argument("name", metavar="MODEL[@VERSION]")
@click.option("--share", type=float, help="Share of trajectories, above 0 and at most 1.")
@click.option("--stop", is_flag=True, help="End the canary of MODEL.")
@_writes
def canary(name: str, share: float | None, stop: bool, **options: Any) -> None:
    """Serve MODEL@VERSION to a share of trajectories, each on it for its whole life; `--stop` ends it."""
    if stop:
        _decide(name.rpartition("@")[0] or name, rollout_actions.stop_canary, **options)
        return
    if share is None:
        raise click.UsageError("name the share of trajectories, as --share 0.1, or --stop")
    model, version = _parse(name)
    _decide(model, lambda model, versions: rollout_actions.start_canary(model, versions, version, share), **options)


@click.command()
@click.argument("name", metavar="MODEL@VERSION")
@_writes
def pin(name: str, **options: Any) -> None:
    """Keep the files of MODEL@VERSION from retention."""
    model, version = _parse(name)
    _decide(model, lambda model, versions: rollout_actions.pin(model, versions, version), **options)


@click.command()
@click.argument("name", metavar="MODEL@VERSION")
@_writes
def unpin(name: str, **options: Any) -> None:
    """Let retention remove the files of MODEL@VERSION again."""
    model, version = _parse(name)
    _decide(model, lambda model, versions: rollout_actions.unpin(model, versions, version), **options)


@click.command()
@click.argument("model")
@_writes
def follow(model: str, **options: Any) -> None:
    """Serve the newest published version of MODEL on the track stable, and each later one."""
    _decide(model, rollout_actions.follow, **options)


@click.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(model: str, as_json: bool) -> None:
    """Print the versions of MODEL that the log decides, those that each live worker serves, and whether it trains.

    Exit status 0: they agree; 1: a worker serves another version, or none is live.
    """
    from stepstream.topics.catalogue import TRAINING_CONTROL, WORKER_STATUS
    from stepstream.topics.table import Table
    from stepstream.versions.follower import VersionFollower
    from stepstream.versions.worker_agreement import served_tracks

    with (
        open_log() as settings,
        VersionFollower(settings) as versions,
        Table(settings, WORKER_STATUS) as workers,
        Table(settings, TRAINING_CONTROL) as controls,
    ):
        wait_read(versions, workers, controls)
        training = [
            {key: one[key] for key in ("tenant", "paused", "task_weights", "reason")}
            for one in controls.items().values()
            if one["model"] == model
        ]
        served, rollout = versions.served(model), versions.rollout(model)
        live = live_workers_of(workers, settings, model)
        problems = _problems(live, served, model)
    rows = [
        {
            "worker": one["worker_id"],
            "url": one["url"],
            "state": one["state"],
            "tracks": {track["track"]: track["version"] for track in served_tracks(one)},
            "reason": one["reason"],
        }
        for one in live
    ]
    decided = None if rollout is None else {key: rollout[key] for key in ("action", "reason", "author")}
    if as_json:
        row = {"model": model, "log": _row(served), "decision": decided, "workers": rows, "problems": problems}
        click.echo(json.dumps({**row, "training": training}))
    else:
        click.echo(f"{model}: {_text(served)}")
        for one in training:
            state = "paused" if one["paused"] else "not paused"
            weights = ", ".join(f"{family} {weight:g}" for family, weight in sorted(one["task_weights"].items()))
            click.echo(f"training of {one['tenant']}: {state}, task weights {weights or 'equal'}  {one['reason']}")
        if decided is not None:
            click.echo(f"decided by {decided['author'] or 'unknown'}: {decided['action']} {decided['reason']}".rstrip())
        for one in rows:
            tracks = ", ".join(f"{track} {version}" for track, version in one["tracks"].items()) or "no version"
            click.echo(f"{one['worker']:<20} {one['state']:<10} {tracks}  {one['url']}")
        _print_problems(problems)
    sys.exit(1 if problems else 0)


def _decide(model: str, decide: _Decide, *, reason: str, wait_s: float | None, as_json: bool) -> None:
    """Read the newest decision, write the next one, print both, and wait for the workers if asked."""
    from stepstream.cli import compacted_topics
    from stepstream.topics.catalogue import ROLLOUTS, WORKER_STATUS
    from stepstream.topics.ids import new_event_id, now_us
    from stepstream.topics.table import Table
    from stepstream.versions.follower import VersionFollower

    with open_log() as settings, VersionFollower(settings) as versions, Table(settings, WORKER_STATUS) as workers:
        wait_read(versions, workers)
        state = versions.snapshot(model)
        before = state.served
        try:
            decision = decide(model, state)
        except RolloutRefused as error:
            raise click.ClickException(str(error)) from None
        event = decision.event(
            model, event_id=new_event_id(), occurred_at_us=now_us(), reason=reason, author=getpass.getuser()
        )
        compacted_topics.write(settings, ROLLOUTS, model, event)
        state.apply_rollout(event)
        if not as_json:
            click.echo(f"{decision.action}: {model}: {_text(state.served)}")
            click.echo(f"before: {_text(before)}")
        problems = {} if wait_s is None else _wait(versions, workers, settings, model, wait_s)
    if as_json:
        made = {key: event[key] for key in ("model", "action", "event_id", "reason", "author")}
        click.echo(json.dumps(made | {"before": _row(before), "after": _row(state.served), "problems": problems}))
    _print_problems(problems)
    sys.exit(1 if problems else 0)


def _wait(versions: Any, workers: Any, settings: Settings, model: str, wait_s: float) -> dict[str, str]:
    """Block until the live workers serve what the log says; return what differs after `wait_s` seconds."""
    wait_read(versions)  # includes the decision just written
    until = time.monotonic() + wait_s
    while True:
        problems = _problems(live_workers_of(workers, settings, model), versions.served(model), model)
        if not problems or time.monotonic() >= until:
            return problems
        time.sleep(_POLL_S)


def _problems(live: list[Any], served: ServedVersions, model: str) -> dict[str, str]:
    from stepstream.versions.worker_agreement import disagreements

    return disagreements(live, served) if live else {"workers": f"no worker of '{model}' is live"}


def live_workers_of(workers: Any, settings: Settings, model: str) -> list[Any]:
    """Return the newest statuses of a model's workers that are not silent."""
    from stepstream.topics.ids import now_us
    from stepstream.versions.worker_agreement import MISSED_STATUSES, live_workers

    silent_s = MISSED_STATUSES * settings.inference.status_every_s
    return live_workers(workers.items().values(), model, now_us(), silent_s, workers.written_us)


def wait_read(*tables: Any) -> None:
    """Block until the tables have read the log.

    Raises:
        RegistryUnavailable: that takes too long.
    """
    from stepstream.topics.codec import RegistryUnavailable

    for table in tables:
        if not table.wait_current(_READ_S):
            raise RegistryUnavailable(f"the log was not read within {_READ_S:g} s: see `stepstream doctor`")


def _text(served: ServedVersions) -> str:
    stable = "no version" if served.stable is None else str(served.stable)
    parts = [f"stable {stable}" + (" (follows the newest)" if served.follows_newest else "")]
    if served.canary is not None:
        parts.append(f"canary {served.canary} on {served.canary_share:g} of trajectories")
    if served.pinned:
        parts.append("pinned " + ", ".join(str(version) for version in sorted(served.pinned)))
    return ", ".join(parts)


def _row(served: ServedVersions) -> dict[str, Any]:
    return {
        "stable": served.stable,
        "canary": served.canary,
        "canary_share": served.canary_share,
        "pinned": sorted(served.pinned),
        "previous_stable": served.previous_stable,
        "taken_back": sorted(served.taken_back),
        "newest": served.newest,
        "follows_newest": served.follows_newest,
    }


def _print_problems(problems: dict[str, str]) -> None:
    for name, problem in problems.items():
        click.echo(f"{name}: {problem}", err=True)


def _parse(name: str) -> tuple[str, int]:
    named = read_name(name)
    if named is None:
        raise click.BadParameter(f"'{name}' is not MODEL@VERSION: write it like demo@7")
    return named


def open_log() -> Any:
    """Start the broker if it is down, reporting that on standard error."""
    from stepstream.embedded.stack import ensure_broker

    return ensure_broker(load(), lambda line: click.echo(line, err=True))


COMMANDS = (promote, rollback, canary, pin, unpin, follow, status)
