"""`stepstream models check`: what of a model will work in serving and learning, before the first step."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click


@click.command("check")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--parsers/--no-parsers", default=True, help="Try vLLM's tool parsers; loads vLLM's Python code.")
def check(path: Path, as_json: bool, parsers: bool) -> None:
    """Check the model in the folder PATH: template, parsers, stop ids, dates, weights, memory.

    Exit status 0: all works, within what the notes say; 1: something will not work.
    """
    from stepstream.services.inference.model_check import check_model

    findings = check_model(path, parsers=parsers)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            click.echo(f"{finding.level:<5}  {finding.check:<16} {finding.text}")
    sys.exit(1 if any(finding.level == "fault" for finding in findings) else 0)
