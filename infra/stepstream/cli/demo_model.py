"""`stepstream demo-model`: let a real model learn online behind vLLM, and put versions out and take them back."""

import json
import sys
import time
from contextlib import closing
from typing import Any

import click

SUMMARY = ("success_before", "success_after", "swaps", "failed_requests", "prefix_kept", "max_mu_gap", "minutes")
"""Figures of the last line."""
MOST_BEFORE = 0.35
"""Largest success of a base model that mostly fails."""
TARGET_MINUTES = 10
"""Minutes of a run on two cores; a longer one is reported, but no fault: machines differ."""


@click.command("demo-model")
def demo_model() -> None:
    """Run agent, stream jobs, learner and vLLM until held-out success passes the target; write a report.

    The last line is JSON. Exit status 0: every figure is in its range; 1: otherwise.
    """
    from stepstream.cli.interrupt import Interrupted, interruptible
    from stepstream.demo.configuration import demo_settings, fresh_run
    from stepstream.demo.model_run import ModelDemo, process_names
    from stepstream.demo.run import TargetMissed
    from stepstream.demo.view import open_view
    from stepstream.embedded.addresses import console_address, resolve_addresses
    from stepstream.embedded.stack import Event, Stack
    from stepstream.learner.lineage import read_versions
    from stepstream.topics.codec import Codec

    settings = fresh_run(resolve_addresses(demo_settings("demo-model")))
    view = open_view(settings.demo.target, settings.demo.deadline_s)

    def print_event(event: Event) -> None:
        if event.state in ("ready", "restarted") or event.name == "install":
            view.print_line(f"{event.name:14} {event.state:10} {event.detail}".rstrip())

    began = time.monotonic()
    try:
        with interruptible(), Stack(settings, process_names(settings), print_event) as stack:
            view.print_line(f"everything runs after {time.monotonic() - began:.1f} s")
            view.print_line(f"console: {console_address(settings)}")
            with closing(Codec(stack.settings)) as codec:
                root = read_versions(stack.settings.kafka, codec).newest(settings.learner.model)
            assert root is not None
            try:
                report = ModelDemo(stack, view, root["version"]).run()
            finally:
                view.close()
            facts = {**report.facts, "minutes": round((time.monotonic() - began) / 60, 2)}
            page = report.write(settings.paths.data / "demo-model")
    except Interrupted:
        view.print_line("stopped; the data stays")
        sys.exit(130)
    except TargetMissed as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"report: {page}")
    if note := slowness(facts):
        click.echo(note)
    click.echo(json.dumps({name: facts[name] for name in SUMMARY}))
    if found := faults(facts, settings.demo.target, settings.demo.swaps):
        raise click.ClickException(f"{'; '.join(found)}: see {page}")


def slowness(facts: dict[str, Any]) -> str:
    """Return a sentence for a run of more than `TARGET_MINUTES`; empty: it was not longer."""
    minutes = facts["minutes"]
    return f"the run took {minutes:g} minutes, above the target of {TARGET_MINUTES}" if minutes > TARGET_MINUTES else ""


def faults(facts: dict[str, Any], target: float, swaps: int) -> list[str]:
    """Return one sentence for each figure that is out of its range."""
    before = facts["success_before"]
    limits = {
        f"success_before is {before}, above {MOST_BEFORE}": before is None or before > MOST_BEFORE,
        f"success_after is {facts['success_after']}, below {target}": facts["success_after"] < target,
        f"swaps is {facts['swaps']}, below {swaps}": facts["swaps"] < swaps,
        f"failed_requests is {facts['failed_requests']}, not 0": facts["failed_requests"] != 0,
        f"prefix_kept is {facts['prefix_kept']}, below 0.99": facts["prefix_kept"] < 0.99,
        "continued_steps is 0, so prefix_kept compared nothing": not facts["continued_steps"],
        f"max_mu_gap is {facts['max_mu_gap']}, not up to 0.001": not facts["max_mu_gap"] <= 1e-3,  # NaN too
        "mu_tokens is 0, so max_mu_gap compared nothing": not facts["mu_tokens"],
        "the restarted worker gives other tokens": not facts["same_tokens_after_restart"],
    }
    return [sentence for sentence, is_fault in limits.items() if is_fault]
