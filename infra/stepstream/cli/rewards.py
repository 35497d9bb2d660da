"""`stepstream rewards`: what the reward of which agents is made of, one version after the other."""

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from stepstream.config import load

if TYPE_CHECKING:
    from stepstream.jobs.rewards.spec import RewardSpec

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def rewards() -> None:
    """Reward specifications of environments and agents."""


@rewards.command("check")
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print what was read as an object.")
def check(file: Path, as_json: bool) -> None:
    """Say what FILE declares, or what is wrong with it; nothing is put up."""
    spec = _read(file)
    if as_json:
        click.echo(_json(spec.model_dump(mode="json") | {"digest": spec.digest()}))
        return
    click.echo(f"{spec.name} ({spec.digest()}): {_whose(spec.environments, spec.agents)}")
    for component in spec.component:
        given = f"builtin {component.builtin}" if component.feedback is None else f"feedback '{component.feedback}'"
        by = "" if component.source is None else f" by {component.source}"
        click.echo(f"  {component.name:20} {component.kind:8} weight {component.paid_weight:g}, {given}{by}")


@rewards.command("put")
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the version that rules now as an object.")
def put(file: Path, as_json: bool) -> None:
    """Check FILE and put it up as the next version; what is kept is labelled again under it."""
    from stepstream.cli import compacted_topics
    from stepstream.embedded.on_demand import log_at_hand
    from stepstream.jobs.rewards.spec_lookup import REWARD_SPECS, next_version, unreadable
    from stepstream.topics.events import new_reward_specification
    from stepstream.topics.ids import new_event_id, now_us

    spec = _read(file)
    with log_at_hand(load(), _say) as settings:
        known = compacted_topics.read(settings, REWARD_SPECS, unreadable)
        record = known.get(spec.name)
        changed = record is None or record["digest"] != spec.digest()
        if record is None or changed:
            record = new_reward_specification(
                event_id=new_event_id(),
                occurred_at_us=now_us(),
                name=spec.name,
                version=next_version(known, spec.name),
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
        click.echo(f"version {record['version']} of {spec.name} rules {_whose(spec.environments, spec.agents)} now")
    else:
        click.echo(f"version {record['version']} of {spec.name} says so already")


@rewards.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def show(name: str, as_json: bool) -> None:
    """Print the newest version of NAME as it was put up."""
    known = _all()
    record = known.get(name)
    if record is None:
        names = ", ".join(sorted(known)) or "none was put up yet: `stepstream rewards put FILE`"
        raise click.ClickException(f"there is no reward specification '{name}'; there are: {names}")
    if as_json:
        click.echo(_json(_row(record) | {"document": record["document"]}))
    else:
        click.echo(f"# version {record['version']} of {name} ({record['digest']})\n{record['document'].rstrip()}")


@rewards.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def list_specifications(as_json: bool) -> None:
    """List the newest version of each specification."""
    rows = [_row(record) for _, record in sorted(_all().items())]
    if as_json:
        click.echo(_json(rows))
        return
    for row in rows:
        whose = _whose(row["environments"], row["agents"])
        click.echo(f"{row['name']:20} version {row['version']:3} {row['put_at']} by {row['author']}: {whose}")
    if not rows:
        click.echo("none: the specification of label.reward_spec rules, or the built-in one, the outcome alone")


def _read(file: Path) -> "RewardSpec":
    from stepstream.jobs.rewards.spec import SpecificationError, parse_spec

    try:
        return parse_spec(file.read_text("utf-8"))
    except SpecificationError as error:
        raise click.ClickException(f"{file} is no reward specification: {error}") from None


def _all() -> dict[str, Any]:
    from stepstream.cli import compacted_topics
    from stepstream.embedded.on_demand import log_at_hand
    from stepstream.jobs.rewards.spec_lookup import REWARD_SPECS, unreadable

    with log_at_hand(load(), _say) as settings:
        return compacted_topics.read(settings, REWARD_SPECS, unreadable)


def _whose(environments: "list[str] | tuple[str, ...]", agents: "list[str] | tuple[str, ...]") -> str:
    if not environments or not agents:
        return "nobody"
    whom = "all agents" if "*" in agents else f"agents {', '.join(agents)}"
    return whom if "*" in environments else f"{whom} in {', '.join(environments)}"


def _row(record: Any) -> dict[str, Any]:
    put_at = datetime.fromtimestamp(record["occurred_at_us"] / 1e6, UTC)
    plain = {field: record[field] for field in ("name", "version", "digest", "environments", "agents", "author")}
    return plain | {"put_at": put_at.isoformat(timespec="seconds")}


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _say(line: str) -> None:
    click.echo(line, err=True)
