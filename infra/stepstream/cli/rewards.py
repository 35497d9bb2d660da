"""`stepstream rewards`: check, publish, show and list reward specifications, which are versioned."""

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from stepstream.config import load
from stepstream.topics.catalogue import REWARD_SPECS

if TYPE_CHECKING:
    from stepstream.jobs.rewards.spec import RewardSpec

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def rewards() -> None:
    """Reward specifications, each for some environments and agents."""


@rewards.command("check")
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the specification as an object.")
def check(file: Path, as_json: bool) -> None:
    """Check FILE and print its components; publish nothing."""
    spec = _read(file)
    if as_json:
        click.echo(_json(spec.model_dump(mode="json") | {"digest": spec.digest()}))
        return
    click.echo(f"{spec.name} ({spec.digest()}): {_scope(spec.environments, spec.agents)}")
    for component in spec.component:
        origin = f"builtin {component.builtin}" if component.feedback is None else f"feedback '{component.feedback}'"
        source = "" if component.source is None else f" by {component.source}"
        click.echo(f"  {component.name:20} {component.kind:8} weight {component.paid_weight:g}, {origin}{source}")


@rewards.command("put")
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the current version as an object.")
def put(file: Path, as_json: bool) -> None:
    """Check FILE and publish it as the next version; `label` then labels the stored trajectories again."""
    from stepstream.cli import compacted_topics
    from stepstream.embedded.stack import ensure_broker
    from stepstream.jobs.rewards.spec_lookup import next_version, rejection_of
    from stepstream.topics.events import new_reward_specification
    from stepstream.topics.ids import new_event_id, now_us

    spec = _read(file)
    with ensure_broker(load(), _print_error) as settings:
        published = compacted_topics.read(settings, REWARD_SPECS, rejection_of)
        record = published.get(spec.name)
        changed = record is None or record["digest"] != spec.digest()
        if record is None or changed:
            record = new_reward_specification(
                event_id=new_event_id(),
                occurred_at_us=now_us(),
                name=spec.name,
                version=next_version(published, spec.name),
                digest=spec.digest(),
                document=file.read_text("utf-8"),
                environments=list(spec.environments),
                agents=list(spec.agents),
                author=getpass.getuser(),
            )
            compacted_topics.write(settings, REWARD_SPECS, spec.name, record)
    if as_json:
        click.echo(_json(_row(record) | {"changed": changed}))
    elif changed:
        scope = _scope(spec.environments, spec.agents)
        click.echo(f"version {record['version']} of {spec.name} applies to {scope} now")
    else:
        click.echo(f"version {record['version']} of {spec.name} is equal: nothing to publish")


@rewards.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def show(name: str, as_json: bool) -> None:
    """Print the file of NAME's newest version."""
    published = _read_all()
    record = published.get(name)
    if record is None:
        names = ", ".join(sorted(published)) or "none yet, publish one with `stepstream rewards put FILE`"
        raise click.ClickException(f"there is no reward specification '{name}'; published: {names}")
    if as_json:
        click.echo(_json(_row(record) | {"document": record["document"]}))
    else:
        click.echo(f"# version {record['version']} of {name} ({record['digest']})\n{record['document'].rstrip()}")


@rewards.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_specifications(as_json: bool) -> None:
    """List the newest version of each specification."""
    rows = [_row(record) for _, record in sorted(_read_all().items())]
    if as_json:
        click.echo(_json(rows))
        return
    for row in rows:
        scope = _scope(row["environments"], row["agents"])
        click.echo(f"{row['name']:20} version {row['version']:3} {row['put_at']} by {row['author']}: {scope}")
    if not rows:
        click.echo("none: the file of label.reward_spec applies, or the built-in specification, which is the outcome")


def _read(file: Path) -> "RewardSpec":
    from stepstream.jobs.rewards.spec import SpecificationError, parse_spec

    try:
        return parse_spec(file.read_text("utf-8"))
    except SpecificationError as error:
        raise click.ClickException(f"{file} is no reward specification: {error}") from None


def _read_all() -> dict[str, Any]:
    from stepstream.cli import compacted_topics
    from stepstream.embedded.stack import ensure_broker
    from stepstream.jobs.rewards.spec_lookup import rejection_of

    with ensure_broker(load(), _print_error) as settings:
        return compacted_topics.read(settings, REWARD_SPECS, rejection_of)


def _scope(environments: "list[str] | tuple[str, ...]", agents: "list[str] | tuple[str, ...]") -> str:
    if not environments or not agents:
        return "no agent"
    names = "all agents" if "*" in agents else f"agents {', '.join(agents)}"
    return names if "*" in environments else f"{names} in {', '.join(environments)}"


def _row(record: Any) -> dict[str, Any]:
    put_at = datetime.fromtimestamp(record["occurred_at_us"] / 1e6, UTC)
    plain = {field: record[field] for field in ("name", "version", "digest", "environments", "agents", "author")}
    return plain | {"put_at": put_at.isoformat(timespec="seconds")}


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _print_error(line: str) -> None:
    click.echo(line, err=True)
