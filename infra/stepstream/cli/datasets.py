"""`stepstream import` and `stepstream export`: trajectories out of and into files of other formats."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import orjson

from stepstream.cli.main import FAULT
from stepstream.config import load
from stepstream.datasets import FORMATS, Episode, Origin

PARQUET = "parquet"
NAMES = ["adp", "atif", "chat", PARQUET, "rlds"]
_EVERY_S = 2.0
_TOLD = 20
_SUFFIXES = (".gz", ".json", ".jsonl", ".ndjson", ".parquet")

FORMAT = click.option("--format", "name", type=click.Choice(NAMES), required=True, help="Format of the file.")


class Progress:
    """Counts, told on standard error every two seconds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._next = time.monotonic() + _EVERY_S

    def add(self, trajectories: int = 0, **counts: int) -> None:
        """Adds to the counts."""
        self.counts.update(trajectories=trajectories, **counts)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            _say(self.text())

    def waits(self, events: int) -> None:
        """Tells that Kafka has not acknowledged events yet."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            _say(f"{self.text()}; {events} events wait for Kafka")

    def text(self) -> str:
        """The counts, in words."""
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@FORMAT
@click.option("--consent", type=click.Choice(["train", "analyse", "none"]), help="What may be done with it, at most.")
@click.option("--tenant", help="Tenant; default: what the file says, else `default`.")
@click.option("--agent", help="Name of the agent; default: what the file says, else `imported`.")
@click.option("--environment", default="", help="Where it worked, which names the reward specification.")
@click.option("--dataset", help="Put before ids that the file gives; default: the file's name.")
@click.option("--policy-version", type=click.IntRange(min=0), help="Version that sampled the file's token ids.")
@click.option(
    "--outcome", type=click.FloatRange(0, 1), help="Of each trajectory whose document tells none: 1 success, 0 failure."
)
@click.option("--dry-run", is_flag=True, help="Read and check all of it; publish nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as an object.")
def import_(
    file: Path,
    name: str,
    consent: Any,
    tenant: str | None,
    agent: str | None,
    environment: str,
    dataset: str | None,
    policy_version: int | None,
    outcome: float | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Publish the trajectories of FILE as steps and feedback. The same file again is the same events again."""
    from stepstream.cli.dataset_import import Bad, Importer, read

    origin = Origin(
        dataset=_stem(file.name) if dataset is None else dataset,
        at_us=int(file.stat().st_mtime * 1e6),
        consent=consent,
        tenant=tenant or "default",
        agent=agent or "imported",
        environment=environment,
        version=policy_version,
        outcome=outcome,
    )
    progress, lost = Progress(), set()
    with ExitStack() as stack:
        importer = (
            None if dry_run else stack.enter_context(closing(Importer(stack.enter_context(_log()), progress.waits)))
        )
        for found in read(file, name, origin, tenant=tenant, agent=agent):
            if not isinstance(found, Bad) and importer is not None:
                found = importer.publish(found)
            if isinstance(found, Bad):
                progress.add(bad=1)
                if progress.counts["bad"] <= _TOLD:
                    _say(f"{file.name}:{found.line}: {found.reason}")
                continue
            lost |= found.episode.lost
            progress.add(1, steps=len(found.episode.steps), feedback=len(found.episode.feedback))
        if importer is not None:
            importer.flush()
    counts = {key: progress.counts[key] for key in ("trajectories", "steps", "feedback", "bad")}
    if as_json:
        click.echo(orjson.dumps(counts | {"left_out": sorted(lost), "published": not dry_run}).decode())
    else:
        click.echo(f"{'checked' if dry_run else 'published'}: {progress.text() or 'nothing'}")
        if lost:
            click.echo(f"left out, since a record has no place for it: {', '.join(sorted(lost))}")
    return FAULT if counts["bad"] else 0


@click.command("export")
@FORMAT
@click.option(
    "--where", default="", help="SQL condition on columns of `trajectories`, as \"agent = 'clerk' AND success\"."
)
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["train", "analyse"]),
    default="train",
    show_default=True,
    help="What it is for: gives what its people allow that for.",
)
@click.option("--with-tokens", is_flag=True, help="Token ids and logprobs too, which are read from the log.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File; default: standard output.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as an object; needs --out.")
def export(name: str, where: str, purpose: Any, with_tokens: bool, out: Path | None, as_json: bool) -> None:
    """Write governed trajectories in another format."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from stepstream.embedded.addresses import wire
    from stepstream.jobs.clickhouse.connection import connect
    from stepstream.jobs.clickhouse.export import Unbounded, episodes, matching

    if name == PARQUET and out is None:
        raise click.UsageError("Parquet cannot go to standard output: give --out FILE")
    if as_json and out is None:
        raise click.UsageError("standard output holds the documents: give --out FILE with --json")
    if out is not None and not out.parent.is_dir():
        raise click.UsageError(f"there is no folder {out.parent}")
    settings = wire(load())
    progress, tokens = Progress(), 0
    with ExitStack() as stack:
        client = connect(settings.clickhouse, database=settings.clickhouse.database)
        stack.callback(client.close)
        try:
            whole = stack.enter_context(_tokens(client, where, purpose)) if with_tokens else None
            write = stack.enter_context(_writer(name, out))
            for ids in matching(client, where, purpose):
                for episode in episodes(client, ids, purpose, whole):
                    write(episode)
                    tokens += sum(step["fidelity"] == "token" for step in episode.steps)
                    progress.add(1, steps=len(episode.steps), feedback=len(episode.feedback))
        except Unbounded as error:
            raise click.UsageError(f"--where: {error}") from None
        except ClickHouseError as error:
            raise click.ClickException(f"ClickHouse refuses: {str(error).strip().splitlines()[0]}") from None
    if as_json:
        counts = {key: progress.counts[key] for key in ("trajectories", "steps", "feedback")}
        click.echo(orjson.dumps(counts | {"steps_with_tokens": tokens}).decode())
    else:
        _say(f"exported: {progress.text() or 'nothing'}; {tokens} steps with tokens")


@contextmanager
def _log() -> Iterator[Any]:
    from stepstream.embedded.on_demand import log_at_hand

    with log_at_hand(load(), _say) as settings:
        yield settings


@contextmanager
def _tokens(client: Any, where: str, purpose: Any) -> Iterator[Any]:
    """Looks up steps with their tokens, which it reads from the log first."""
    from stepstream.crypto.key_ring import codec_of
    from stepstream.jobs.clickhouse.export import matching
    from stepstream.jobs.clickhouse.step_cache import StepCache

    wanted = {name for ids in matching(client, where, purpose) for name in ids}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        cache = stack.enter_context(closing(StepCache(folder / "steps.db")))
        settings = stack.enter_context(_log())
        cache.fill(settings, stack.enter_context(closing(codec_of(settings))), wanted)
        yield cache.get


@contextmanager
def _writer(name: str, out: Path | None) -> Iterator[Callable[[Episode], None]]:
    """Writes episodes, one after the other. A file appears whole, or not at all."""
    from stepstream.datasets.files import line_of

    partial = None if out is None else out.with_name(f".{out.name}.partial")
    try:
        if name == PARQUET:
            from stepstream.datasets.parquet import ParquetFile

            assert partial is not None
            with ParquetFile(partial) as file:
                yield file.write
        else:
            with ExitStack() as stack:
                stream = sys.stdout.buffer if partial is None else stack.enter_context(partial.open("wb"))
                form = FORMATS[name]
                yield lambda episode: stream.writelines(line_of(document) for document in form.write(episode))
        if partial is not None and out is not None:
            partial.replace(out)
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def _stem(name: str) -> str:
    """A file's name without what tells its kind: `runs.2026-01` of `runs.2026-01.jsonl.gz`."""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix) or name
    return name


def _say(line: str) -> None:
    click.echo(line, err=True)
