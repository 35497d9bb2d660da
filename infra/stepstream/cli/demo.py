"""`stepstream demo`: run the loop on the embedded stack until the policy is clearly better."""

import json
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from stepstream.config import Settings


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON at the end.")
def demo(as_json: bool) -> None:
    """Run agents, stream jobs, learner and worker until held-out success passes the target; write a report.

    Exit status 0: the target was reached and no record was lost or duplicated; 1: otherwise.
    """
    from stepstream.cli.interrupt import Interrupted, interruptible
    from stepstream.demo.configuration import demo_settings, fresh_run
    from stepstream.demo.memory import MemoryWatch
    from stepstream.demo.run import Demo, TargetMissed
    from stepstream.demo.view import open_view
    from stepstream.embedded.addresses import console_address, resolve_addresses
    from stepstream.embedded.errors import StackError
    from stepstream.embedded.stack import Event, Stack
    from stepstream.learner.lineage import read_versions
    from stepstream.topics.codec import Codec

    settings = fresh_run(resolve_addresses(demo_settings()))
    folder = settings.paths.data / "demo"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(f"cannot write to {settings.paths.data} ({error}): set STEPSTREAM_PATHS_DATA") from None
    for ledger in folder.glob("*.jsonl"):
        ledger.unlink()  # of an earlier run
    view = open_view(settings.demo.target, settings.demo.deadline_s)

    def print_event(event: Event) -> None:
        if event.state in ("ready", "restarted") or event.name == "install":
            view.print_line(f"{event.name:14} {event.state:10} {event.detail}".rstrip())

    began = time.monotonic()
    try:
        with interruptible(), Stack(settings, on_event=print_event, deferred=["fleet"]) as stack:
            view.print_line(f"everything runs after {time.monotonic() - began:.1f} s")
            view.print_line(f"console: {console_address(settings)}")
            with closing(Codec(stack.settings)) as codec:
                root = read_versions(stack.settings.kafka, codec).newest(settings.learner.model)
            assert root is not None
            memory = MemoryWatch(stack.members)
            try:
                report = Demo(stack, view, root["version"]).run(memory)
            finally:
                memory.stop()
                view.close()
            page = report.write(folder)
    except Interrupted:
        view.print_line("stopped; the data stays")
        sys.exit(130)
    except TargetMissed as error:
        raise click.ClickException(str(error)) from None
    _print_summary(report.facts, page, _curve(settings), as_json)


def _curve(settings: Settings) -> str:
    """Return the address of the console's page with the learning curve; `make up` serves it again."""
    from stepstream.embedded.addresses import console_address

    query = urlencode({"model": settings.learner.model, "since": "24h"})
    return f"{console_address(settings)}/curves?{query}"


def _print_summary(facts: dict[str, Any], page: Path, curve: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts))
    else:
        before, after = facts["success_before"], facts["success_after"]
        click.echo(
            f"\nheld-out success {100 * before:.1f} % -> {100 * after:.1f} % in {facts['seconds_to_target']:.0f} s, "
            f"{facts['policy_versions']} policy versions\n"
            f"{facts['steps_produced']} steps sent, {facts['steps_in_clickhouse']} in ClickHouse; "
            f"{facts['lost']} lost, {facts['duplicated']} duplicated\n"
            f"staleness at most {facts['staleness_max']} of {facts['staleness_bound']}, "
            f"peak memory {facts['peak_rss_mb']} MB\nreport: {page}\n"
            f"learning curve: {curve} (while `make up` runs)"
        )
    if facts["lost"] or facts["duplicated"]:
        raise click.ClickException(
            f"{facts['lost']} records lost, {facts['duplicated']} duplicated: compare the ledgers in {page.parent} "
            "with the tables"
        )
