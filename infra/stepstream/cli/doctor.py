"""`stepstream doctor`: check the parts and print each finding with its remedy."""

from dataclasses import asdict

import click
import orjson

from stepstream.cli.doctor_checks import all_findings
from stepstream.config import load
from stepstream.embedded.addresses import resolve_addresses


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def doctor(as_json: bool) -> int:
    """Check versions, settings, disk, broker, registry, store and ports. Exit status 1: there is a fault."""
    findings = []
    for finding in all_findings(resolve_addresses(load())):
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.state:8} {finding.name:10} {finding.detail}")
            if finding.fix:
                click.echo(f"{'':19} -> {finding.fix}")
    if as_json:
        click.echo(orjson.dumps([asdict(f) for f in findings], option=orjson.OPT_INDENT_2).decode())
    return int(any(finding.state == "fault" for finding in findings))
