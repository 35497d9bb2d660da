"""`stepstream harness`: list, show, compare, import, export, try, promote, pin and take back harness versions.

Each command that decides reads the agent's versions, writes one record to the topic `harnesses` and prints what serves
the agent afterwards.
"""

import getpass
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from difflib import unified_diff
from pathlib import Path
from typing import Any, cast

import click
import orjson

from stepstream.cli.harness_propose import propose
from stepstream.config import Settings, load
from stepstream.topics.catalogue import HARNESSES
from stepstream.topics.events import Harness, new_harness
from stepstream.versions import harnesses
from stepstream.versions.harnesses import PARTS, HarnessRefused

_Versions = Mapping[str, Harness]
_Function = Callable[..., None]


@click.group()
def harness() -> None:
    """Harness versions of agents: instructions, examples, tools, attempts and model as data."""


harness.add_command(propose)


def _of_agent(command: _Function) -> _Function:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--tenant", default="default", show_default=True, help="Tenant of the agent."),
        click.option("--agent", required=True, help="Agent of the versions."),
    ):
        command = option(command)
    return command


def _with_reason(command: _Function) -> _Function:
    return click.option("--reason", default="", help="Reason for the decision, for the log.")(command)


@harness.command("list")
@_of_agent
def list_versions(agent: str, tenant: str, as_json: bool) -> None:
    """List the versions of an agent, the newest decision first."""
    with _log() as settings:
        versions = _read(settings, tenant, agent)
    rows = [_row(one, versions) for one in sorted(versions.values(), key=lambda one: -one["revision"])]
    if as_json:
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for row in rows:
        serves = f"serves {row['serves']}" if row["serves"] else ""
        click.echo(f"{row['version']}  {row['state']:<9} {serves:<20} {row['proposer']}  {row['reason']}".rstrip())


@harness.command("show")
@click.argument("version")
@_of_agent
def show(version: str, agent: str, tenant: str, as_json: bool) -> None:
    """Print a version: its content, the digest of each part, its state and why."""
    with _log() as settings:
        versions = _read(settings, tenant, agent)
    found = _known(versions, version)
    row = _row(found, versions) | {"digests": harnesses.part_digests(found)} | {part: found[part] for part in PARTS}  # type: ignore[literal-required]
    if as_json:
        click.echo(orjson.dumps(row, option=orjson.OPT_INDENT_2).decode())
        return
    for name, value in row.items():
        text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
        click.echo(f"{name}: {text}")


@harness.command("diff")
@click.argument("before")
@click.argument("after")
@_of_agent
def diff(before: str, after: str, agent: str, tenant: str, as_json: bool) -> None:
    """Print the parts in which two versions differ. Exit status 0, also if they do."""
    with _log() as settings:
        versions = _read(settings, tenant, agent)
    one, other = _known(versions, before), _known(versions, after)
    changed = {part: [one[part], other[part]] for part in PARTS if one[part] != other[part]}  # type: ignore[literal-required]
    if as_json:
        click.echo(orjson.dumps(changed, option=orjson.OPT_INDENT_2).decode())
        return
    for part, (left, right) in changed.items():
        lines = unified_diff(_lines(left), _lines(right), f"{part} {before}", f"{part} {after}", lineterm="")
        click.echo("\n".join(lines))


@harness.command("lineage")
@click.argument("version")
@_of_agent
def lineage(version: str, agent: str, tenant: str, as_json: bool) -> None:
    """List a version and those from which it was made, children first."""
    with _log() as settings:
        versions = _read(settings, tenant, agent)
    try:
        rows = [_row(one, versions) for one in harnesses.lineage(versions, version)]
    except HarnessRefused as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    for row in rows:
        parents = ", ".join(row["parents"]) or "no parent"
        click.echo(f"{row['version']}  from {parents}  {row['state']}  {row['proposer']}")


@harness.command("export")
@click.argument("version")
@click.argument("file", type=click.Path(path_type=Path))
@_of_agent
def export(version: str, file: Path, agent: str, tenant: str, as_json: bool) -> None:
    """Write the content of a version to FILE as JSON, which `import` reads."""
    with _log() as settings:
        found = _known(_read(settings, tenant, agent), version)
    content = {part: found[part] for part in PARTS} | {"parents": [version]}  # type: ignore[literal-required]
    file.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
    click.echo(orjson.dumps({"version": version, "file": str(file)}).decode() if as_json else f"wrote {file}")


@harness.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_of_agent
@_with_reason
def import_(file: Path, agent: str, tenant: str, as_json: bool, reason: str) -> None:
    """Propose the harness in FILE, a JSON object as `export` writes it; `canary` or `promote` applies it."""
    from stepstream.versions.harness_file import InvalidHarness, read_harness

    try:
        content = read_harness(file.read_bytes())
    except InvalidHarness as error:
        raise click.ClickException(f"{file}: {error}") from None
    given = new_harness(event_id="", occurred_at_us=0, tenant=tenant, agent=agent, version="", **content)
    given["proposer"] = getpass.getuser()
    _decide(tenant, agent, lambda versions: harnesses.propose(versions, given), reason, as_json)


@harness.command("canary")
@click.argument("version")
@click.option("--share", type=float, required=True, help="Share of trajectories, above 0 and at most 1.")
@_of_agent
@_with_reason
def canary(version: str, share: float, agent: str, tenant: str, as_json: bool, reason: str) -> None:
    """Apply VERSION to a share of the agent's trajectories, each for its whole life."""
    _decide(tenant, agent, lambda versions: harnesses.start_canary(versions, version, share), reason, as_json)


@harness.command("promote")
@click.argument("version")
@_of_agent
@_with_reason
def promote(version: str, agent: str, tenant: str, as_json: bool, reason: str) -> None:
    """Apply VERSION to all trajectories of the agent that begin from now on."""
    _decide(tenant, agent, lambda versions: harnesses.promote(versions, version), reason, as_json)


@harness.command("rollback")
@click.argument("version", required=False)
@_of_agent
@_with_reason
def rollback(version: str | None, agent: str, tenant: str, as_json: bool, reason: str) -> None:
    """Take back the canary, or else the stable version: the one before it serves again."""
    _decide(tenant, agent, lambda versions: harnesses.take_back(versions, version), reason, as_json)


@harness.command("refuse")
@click.argument("version")
@_of_agent
@_with_reason
def refuse(version: str, agent: str, tenant: str, as_json: bool, reason: str) -> None:
    """Refuse a proposal for good."""
    _decide(tenant, agent, lambda versions: harnesses.refuse(versions, version), reason, as_json)


@harness.command("pin")
@click.argument("version")
@click.option("--off", is_flag=True, help="Let other versions serve again.")
@_of_agent
@_with_reason
def pin(version: str, off: bool, agent: str, tenant: str, as_json: bool, reason: str) -> None:
    """Keep the stable VERSION: no canary and no promotion until `--off`."""
    _decide(tenant, agent, lambda versions: harnesses.pin(versions, version, pinned=not off), reason, as_json)


def _decide(tenant: str, agent: str, decide: Callable[[_Versions], Harness], reason: str, as_json: bool) -> None:
    """Read the agent's versions, write the record that `decide` returns, and print what serves the agent."""
    from stepstream.cli import compacted_topics
    from stepstream.topics.ids import new_event_id, now_us

    with _log() as settings:
        versions = _read(settings, tenant, agent)
        try:
            decided = decide(versions)
        except HarnessRefused as error:
            raise click.ClickException(str(error)) from None
        identity = {"event_id": new_event_id(), "occurred_at_us": now_us()}
        record = cast(Harness, {**decided, **identity, "reason": reason, "author": getpass.getuser()})
        compacted_topics.write(settings, HARNESSES, harnesses.record_key(tenant, agent, record["version"]), record)
    after = {**versions, record["version"]: record}
    if as_json:
        click.echo(orjson.dumps(_row(record, after)).decode())
        return
    served = harnesses.served_harnesses(after.values())
    stable = "the agent's own calls" if served.stable is None else served.stable["version"]
    text = f"{agent}: version {record['version']} is {record['state']}; stable {stable}"
    if served.canary is not None:
        text += f", canary {served.canary['version']} on {served.canary['share']:g} of trajectories"
    click.echo(text)


def _row(one: Harness, versions: _Versions) -> dict[str, Any]:
    """Return what identifies a version, and the track that it serves; empty: none."""
    served = harnesses.served_harnesses(versions.values())
    tracks = {"stable": served.stable, "canary": served.canary}
    serves = next((track for track, found in tracks.items() if found and found["version"] == one["version"]), "")
    names = "version", "state", "share", "pinned", "revision", "parents", "proposer", "author", "reason"
    return {name: one[name] for name in names} | {"serves": serves}  # type: ignore[literal-required]


def _known(versions: _Versions, version: str) -> Harness:
    if version not in versions:
        known = ", ".join(sorted(versions)) or "none"
        raise click.ClickException(f"version {version} of the agent is unknown; known: {known}")
    return versions[version]


def _lines(value: Any) -> list[str]:
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return text.splitlines()


def _read(settings: Settings, tenant: str, agent: str) -> dict[str, Harness]:
    from stepstream.cli import compacted_topics

    records = compacted_topics.read(settings, HARNESSES)
    return harnesses.versions_of(records.values(), tenant, agent)


def _log() -> AbstractContextManager[Settings]:
    """Start the broker if it is down, reporting that on standard error."""
    from stepstream.embedded.stack import ensure_broker

    return ensure_broker(load(), lambda line: click.echo(line, err=True))
