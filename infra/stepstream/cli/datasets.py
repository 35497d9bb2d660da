"""`stepstream import` and `stepstream export`: read and write trajectories in files of other formats."""

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
FORMAT_NAMES = ["adp", "atif", "chat", PARQUET, "rlds"]
_PROGRESS_INTERVAL_S = 2.0
_MAX_REPORTED = 20
_SUFFIXES = (".gz", ".json", ".jsonl", ".ndjson", ".parquet")

FORMAT = click.option("--format", "name", type=click.Choice(FORMAT_NAMES), required=True, help="Format of the file.")


class Progress:
    """Counters, printed on standard error every two seconds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._next = time.monotonic() + _PROGRESS_INTERVAL_S

    def add(self, trajectories: int = 0, **counts: int) -> None:
        """Add to the counts."""
        self.counts.update(trajectories=trajectories, **counts)
        self._print(self.text())

    def report_in_flight(self, events: int) -> None:
        """Report events that Kafka has not acknowledged."""
        self._print(f"{self.text()}; {events} events await Kafka's acknowledgement")

    def text(self) -> str:
        """Return the counts in words."""
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())

    def _print(self, line: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_INTERVAL_S
            _print_error(line)


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@FORMAT
@click.option(
    "--consent", type=click.Choice(["train", "analyse", "none"]), help="Consent, an upper bound of the file's."
)
@click.option("--tenant", help="Tenant; default: the file's, else `default`.")
@click.option("--agent", help="Name of the agent; default: the file's, else `imported`.")
@click.option("--environment", default="", help="Environment of the agent, which selects the reward specification.")
@click.option("--dataset", help="Prefix of the file's ids; default: the file's name.")
@click.option("--policy-version", type=click.IntRange(min=0), help="Version that sampled the file's token ids.")
@click.option(
    "--outcome", type=click.FloatRange(0, 1), help="Outcome of trajectories without one: 1 success, 0 failure."
)
@click.option("--dry-run", is_flag=True, help="Read and check the file; publish nothing.")
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
    """Publish the trajectories of FILE as steps and feedback. Importing the same file again adds nothing."""
    from stepstream.cli.dataset_import import Importer, RejectedDocument, read_episodes

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
            None
            if dry_run
            else stack.enter_context(closing(Importer(stack.enter_context(_log()), progress.report_in_flight)))
        )
        for result in read_episodes(file, name, origin, tenant=tenant, agent=agent):
            if not isinstance(result, RejectedDocument) and importer is not None:
                result = importer.publish(result)
            if isinstance(result, RejectedDocument):
                progress.add(bad=1)
                if progress.counts["bad"] <= _MAX_REPORTED:
                    _print_error(f"{file.name}:{result.line}: {result.reason}")
                continue
            lost |= result.episode.omitted
            progress.add(1, steps=len(result.episode.steps), feedback=len(result.episode.feedback))
        if importer is not None:
            importer.flush()
    counts = {key: progress.counts[key] for key in ("trajectories", "steps", "feedback", "bad")}
    if as_json:
        click.echo(orjson.dumps(counts | {"left_out": sorted(lost), "published": not dry_run}).decode())
    else:
        click.echo(f"{'checked' if dry_run else 'published'}: {progress.text() or 'nothing'}")
        if lost:
            click.echo(f"left out, because the records have no field for it: {', '.join(sorted(lost))}")
    return FAULT if counts["bad"] else 0


@click.command("export")
@FORMAT
@click.option(
    "--where", default="", help="SQL condition on columns of `trajectories`, e.g. \"agent = 'clerk' AND success\"."
)
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["train", "analyse"]),
    default="train",
    show_default=True,
    help="Purpose; exports only trajectories whose consent allows it.",
)
@click.option("--with-tokens", is_flag=True, help="Include token ids and logprobs, read from the log.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Output file; default: standard output.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as an object; needs --out.")
def export(name: str, where: str, purpose: Any, with_tokens: bool, out: Path | None, as_json: bool) -> None:
    """Write governed trajectories to a file of another format."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from stepstream.embedded.addresses import resolve_addresses
    from stepstream.jobs.clickhouse.connection import connect
    from stepstream.jobs.clickhouse.export import UnbalancedCondition, episodes, matching_pages

    if name == PARQUET and out is None:
        raise click.UsageError("Parquet cannot go to standard output: give --out FILE")
    if as_json and out is None:
        raise click.UsageError("--json cannot share standard output with the documents: give --out FILE")
    if out is not None and not out.parent.is_dir():
        raise click.UsageError(f"there is no folder {out.parent}: create it, or give another --out FILE")
    settings = resolve_addresses(load())
    progress, tokens = Progress(), 0
    with ExitStack() as stack:
        client = connect(settings, database=settings.clickhouse.database, reads_only=True)
        stack.callback(client.close)
        try:
            tokens_of = stack.enter_context(_token_lookup(client, where, purpose)) if with_tokens else None
            write = stack.enter_context(_writer(name, out))
            for page in matching_pages(client, where, purpose):
                for episode in episodes(client, page, purpose, tokens_of):
                    write(episode)
                    tokens += sum(step["fidelity"] == "token" for step in episode.steps)
                    progress.add(1, steps=len(episode.steps), feedback=len(episode.feedback))
        except UnbalancedCondition as error:
            raise click.UsageError(f"--where: {error}") from None
        except ClickHouseError as error:
            reason = str(error).strip().splitlines()[0]
            raise click.ClickException(f"ClickHouse rejects the query: {reason}; check --where") from None
    if as_json:
        counts = {key: progress.counts[key] for key in ("trajectories", "steps", "feedback")}
        click.echo(orjson.dumps(counts | {"steps_with_tokens": tokens}).decode())
    else:
        _print_error(f"exported: {progress.text() or 'nothing'}; {tokens} steps with tokens")


@contextmanager
def _log() -> Iterator[Any]:
    from stepstream.embedded.stack import ensure_broker

    with ensure_broker(load(), _print_error) as settings:
        yield settings


@contextmanager
def _token_lookup(client: Any, where: str, purpose: Any) -> Iterator[Any]:
    """Read the matching steps from the log; yield a function that returns a step with its tokens."""
    from stepstream.crypto.key_ring import sealing_codec
    from stepstream.jobs.clickhouse.export import matching_pages
    from stepstream.jobs.clickhouse.step_cache import StepCache

    wanted = {(page.tenant, name) for page in matching_pages(client, where, purpose) for name in page.ids}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        cache = stack.enter_context(closing(StepCache(folder / "steps.db")))
        settings = stack.enter_context(_log())
        cache.fill(settings, stack.enter_context(closing(sealing_codec(settings))), wanted)
        yield cache.get


@contextmanager
def _writer(name: str, out: Path | None) -> Iterator[Callable[[Episode], None]]:
    """Yield a function that writes one episode. The file appears at exit, or not at all after an error."""
    from stepstream.datasets.files import to_line

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
                yield lambda episode: stream.writelines(to_line(document) for document in form.write(episode))
        if partial is not None and out is not None:
            partial.replace(out)
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def _stem(name: str) -> str:
    """Return a file's name without the suffixes of its format: `runs.2026-01` for `runs.2026-01.jsonl.gz`."""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix) or name
    return name


def _print_error(line: str) -> None:
    click.echo(line, err=True)
