"""`stepstream demo-control`: let things happen to a fleet under the control plane, and judge its decisions."""

import json
import random
import sys
import time
from typing import Any

import click

SUMMARY = ("right_levers", "undone", "false_actions", "success_before", "success_after")
"""Figures of the last line."""


@click.command("demo-control")
@click.option("--seed", type=int, help="Draws the order of the events; without it, a random one.")
@click.option("--short", is_flag=True, help="A form for CI: two of the events, and shorter measurements.")
@click.option(
    "--time-factor",
    type=click.FloatRange(min=1),
    default=1.0,
    help="Factor on the longest time for an answer, for a machine that does other work too.",
)
def demo_control(seed: int | None, short: bool, time_factor: float) -> None:
    """Run a fleet and the control plane while things happen, in an order that is printed at the end; write a report.

    The last line is JSON. Exit status 0: the right lever each time, the bad ones undone, no false action, and success
    higher at the end, with intervals apart; 1: otherwise.
    """
    from stepstream.cli.interrupt import Interrupted, interruptible
    from stepstream.demo.control.log_reader import LogReader
    from stepstream.demo.control.page import ControlReport
    from stepstream.demo.control.preparation import prepare_log, run_settings
    from stepstream.demo.control.run import LONG, SHORT, ControlDemo, summary
    from stepstream.demo.control.timeline import EVENTS, SHORT_EVENTS, order_of
    from stepstream.demo.view import PlainView
    from stepstream.embedded.addresses import console_address
    from stepstream.embedded.stack import Event, Stack

    seed = random.randrange(10**6) if seed is None else seed
    settings = run_settings()
    folder = settings.paths.data / "demo-control"
    view = PlainView(settings.demo.target)

    def print_event(event: Event) -> None:
        if event.state in ("ready", "restarted") or event.name == "install":
            view.print_line(f"{event.name:14} {event.state:10} {event.detail}".rstrip())

    began = time.monotonic()
    try:
        with interruptible(), Stack(settings, on_event=print_event) as stack:
            view.print_line(f"everything runs after {time.monotonic() - began:.1f} s")
            view.print_line(f"console: {console_address(settings)}")
            prepare_log(stack.settings)
            with LogReader(stack.settings) as log:
                pace = (SHORT if short else LONG).with_time_factor(time_factor)
                demo = ControlDemo(stack, view, log, pace, seed)
                result = demo.run(order_of(seed, SHORT_EVENTS if short else EVENTS))
    except Interrupted:
        view.print_line("stopped; the data stays")
        sys.exit(130)
    report = ControlReport(result, seed, time.monotonic() - began)
    page = report.write(folder)
    click.echo("\n".join(summary(result)))
    click.echo(f"report: {page}")
    facts = report.facts
    click.echo(json.dumps({name: facts[name] for name in SUMMARY}))
    if found := faults(facts):
        raise click.ClickException(f"{'; '.join(found)}: see {page}")


def faults(facts: dict[str, Any]) -> list[str]:
    """Return one sentence for each figure that is out of its range."""
    before, after = facts["success_before_interval"], facts["success_after_interval"]
    events, bad = facts["events"], facts["bad_events"]
    limits = {
        f"right_levers is {facts['right_levers']} of {events}": facts["right_levers"] != events,
        f"undone is {facts['undone']} of {bad}": facts["undone"] != bad,
        f"false_actions is {facts['false_actions']}, not 0": facts["false_actions"] != 0,
        "success did not rise with intervals apart": before is None or after is None or before[1] >= after[0],
    }
    return [sentence for sentence, is_fault in limits.items() if is_fault]
