"""`stepstream verify`: check verification files; calibrate judges by their agreement with people."""

from pathlib import Path
from typing import Any

import click
import orjson

from stepstream.config import SettingsError, load
from stepstream.topics.catalogue import JUDGE_CALIBRATIONS


@click.group()
def verify() -> None:
    """Verifiers of the work of agents."""


@verify.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def check(file: Path, as_json: bool) -> None:
    """Check FILE, the files that it names, and the sandbox if it needs one; verify nothing."""
    from stepstream.jobs.verifiers.sandbox.run import SandboxError
    from stepstream.jobs.verifiers.unit_tests import UnitTests

    verifications = _verifications(file)
    for item in verifications:
        if isinstance(item.verifier, UnitTests):
            try:
                item.verifier.try_sandbox()
            except SandboxError as error:
                raise SettingsError(f"verification file {file}: '{item.config.name}': {error}") from None
    rows = [
        {
            "name": item.config.name,
            "verifier": item.config.verifier,
            "source": item.verifier.source,
            "level": "step" if item.verifier.reads_trajectory else item.config.level,
            "reads": "trajectory" if item.verifier.reads_trajectory else item.config.reads,
            "tasks": None if item.expected is None else len(item.expected),
            "judge": getattr(item.verifier, "digest", None),
        }
        for item in verifications
    ]
    if as_json:
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        return
    for row in rows:
        tasks = "" if row["tasks"] is None else f", {row['tasks']} tasks"
        judge = "" if row["judge"] is None else f", judge {row['judge']}"
        click.echo(
            f"{row['name']:24} {row['verifier']} of {row['reads']} [{row['level']}] {row['source']}{tasks}{judge}"
        )


@verify.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--set", "labelled", required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSONL of labelled cases: id, task, response, reference, labels.",
)  # fmt: skip
@click.option("--name", help="Verification of the judge; required if FILE has several.")
@click.option("--next-state", is_flag=True, help="Measure the judge of the job `judge`; takes no FILE.")
@click.option("--by", "author", default="", help="Name of the person who calibrates.")
@click.option("--dry-run", is_flag=True, help="Measure only; publish no result.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as an object.")
def calibrate(
    file: Path | None, labelled: Path, name: str | None, next_state: bool, author: str, dry_run: bool, as_json: bool
) -> int:
    """Measure how well a judge of FILE agrees with people. If the agreement suffices, its verdicts count from then on.

    Exit status 1: the agreement does not suffice.
    """
    from stepstream.cli import compacted_topics
    from stepstream.embedded.errors import StackError
    from stepstream.embedded.stack import ensure_broker
    from stepstream.jobs.judging import calibrate
    from stepstream.jobs.judging.calibration import rejection_of
    from stepstream.jobs.verifiers.base import Unavailable
    from stepstream.topics.ids import now_us

    settings = load()
    if next_state == (file is not None):
        raise click.UsageError("give either a verification file or --next-state")
    if file is not None:
        judge: calibrate.MeasurableJudge = calibrate.VerifierJudge(_judge(file, name))
    elif settings.judge.url and settings.judge.model:
        judge = calibrate.NextStateJudge(settings.judge)
    else:
        raise SettingsError("no judge is configured: set judge.url and judge.model")
    cases = calibrate.read_set(labelled, judge.fields)
    try:
        record = calibrate.calibrate(
            judge, cases, parallel=settings.verify.parallel, occurred_at_us=now_us(), author=author
        )
    except Unavailable as error:
        raise StackError(f"{error}; nothing was recorded") from None
    if not dry_run:
        with ensure_broker(settings, lambda line: click.echo(line, err=True)) as resolved:
            compacted_topics.write(resolved, JUDGE_CALIBRATIONS, judge.digest, record)
    lacks = rejection_of(record, judge.gate)
    if as_json:
        click.echo(orjson.dumps({**record, "counts": lacks is None, "lacks": lacks}, option=orjson.OPT_INDENT_2))
    else:
        _print_calibration(record, lacks)
    return 0 if lacks is None else 1


def _print_calibration(record: Any, lacks: str | None) -> None:
    low, high = record["agreement_low"], record["agreement_high"]
    click.echo(f"judge      {record['judge']} ({record['model']}, {record['mode']})")
    click.echo(f"agreement  {record['agreement']:.3f} ({low:.3f} to {high:.3f}) on {record['items']} cases")
    if record["kappa"] is not None:
        click.echo(f"kappa      {record['kappa']:.3f} ± {record['kappa_se']:.3f}")
    if record["order_consistency"] is not None:
        flips = f"{record['flips']} inconsistent cases left out"
        click.echo(f"order      {record['order_consistency']:.3f} consistent, {flips}")
    if record["unread"]:
        click.echo(f"unread     {record['unread']} answers could not be parsed")
    if record["raters_alpha"] is not None:
        click.echo(f"people     alpha {record['raters_alpha']:.3f} among raters")
    if record["brier"] is not None:
        scaled = "no scaling helps" if record["temperature"] is None else f"T {record['temperature']:.3f}"
        brier, ece = (f"{record[f'{name}_raw']:.3f} → {record[name]:.3f}" for name in ("brier", "ece"))
        click.echo(f"scores     Brier {brier}, ECE {ece} ({scaled})")
    click.echo("verdicts count" if lacks is None else f"verdicts do not count: {lacks}")


def _verifications(file: Path) -> Any:
    from stepstream.jobs.verifiers.options import VerifierContext
    from stepstream.jobs.verifiers.specification import load as load_file

    return load_file(file, VerifierContext(load(), file.parent))


def _judge(file: Path, name: str | None) -> Any:
    from stepstream.jobs.judging.judge import Judge

    judges = {item.config.name: item.verifier for item in _verifications(file) if isinstance(item.verifier, Judge)}
    if name is None and len(judges) == 1:
        [name] = judges
    if name not in judges:
        raise SettingsError(f"{file} has the judges {', '.join(sorted(judges)) or 'none'}: name one with --name")
    return judges[name]
