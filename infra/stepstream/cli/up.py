"""`stepstream up`, `run` and `install`: the embedded stack from the command line."""

import os
import sys
import time

import click

from stepstream.config import Settings, environment_of, load
from stepstream.embedded.addresses import wire

_POLL_S = 0.5


@click.command()
def install() -> None:
    """Fetch the broker's jars against their hashes and make its start-up cache; a second time does nothing."""
    from stepstream.embedded import install as embedded

    settings = load()
    if embedded.installed(settings):
        click.echo("Kafka is installed")
        return
    shown = _Progress()
    embedded.install(settings, shown)
    shown.done("Kafka is installed")


@click.command()
@click.option("--no-fleet", is_flag=True, help="Run everything but the fleet of demonstration agents.")
@click.option("--only", multiple=True, metavar="PROCESS", help="Run only these (repeat it); `worker`: all workers.")
def up(no_fleet: bool, only: tuple[str, ...]) -> None:
    """Run the stack until Ctrl-C: the services of the loop, restarted when they crash, one log file each.

    A part whose address is set to something else (STEPSTREAM_KAFKA_BOOTSTRAP, …) is used there and not started.
    """
    from stepstream.cli.interrupt import Interrupted, interruptible
    from stepstream.demo.configuration import demo_settings
    from stepstream.embedded.processes import Process, table
    from stepstream.embedded.stack import Event, Stack

    fetching = _Progress()

    def say(event: Event) -> None:
        if event.name == "install":
            if event.state == "starting":
                fetching(event.detail)
            else:
                fetching.done("Kafka is installed")
        else:
            click.echo(f"{event.name:14} {event.state:10} {event.detail}".rstrip())

    settings = wire(demo_settings())
    every = [part.name for part in table(settings) if isinstance(part, Process)]
    chosen = list(only) or [name for name in every if not (no_fleet and name == "fleet")]
    try:
        with interruptible(), Stack(settings, chosen, say) as stack:
            _say_addresses(stack.settings, {process.name for process in stack.processes})
            while True:
                time.sleep(_POLL_S)
                stack.poll()
    except Interrupted:
        click.echo("stopped; the data stays")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("process")
def run(process: str) -> None:
    """Run one PROCESS of the stack in the foreground (broker, registry, worker-0, …); Ctrl-C stops it."""
    from stepstream.embedded.processes import Process, select, table

    settings = wire(load())
    (found,) = (part for part in select(table(settings), [process]) if isinstance(part, Process))
    environment = {**os.environ, **environment_of(settings), **found.environment}
    os.execve(sys.executable, [sys.executable, "-m", found.module], environment)


def _say_addresses(settings: Settings, running: set[str]) -> None:
    shown = {
        "broker": settings.kafka.bootstrap,
        "registry": settings.schema_registry.url,
        "store": settings.clickhouse.url,
        "gateway": f"{settings.fleet.gateway_url}/v1",
        "console": f"http://{settings.console.host}:{settings.console.port}",
    }
    click.echo("")
    for name, address in shown.items():
        if name in running:
            click.echo(f"{name:14} {address}")
    click.echo(f"{'logs':14} {settings.paths.data / 'logs'}\n\nCtrl-C stops everything.")


class _Progress:
    """One line that changes on a terminal; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._said = 0.0

    def __call__(self, line: str) -> None:
        if self._live:
            click.echo(f"\r\033[K{line}", nl=False)
        elif time.monotonic() - self._said > 2 or "fetching" not in line:
            self._said = time.monotonic()
            click.echo(line)

    def done(self, line: str) -> None:
        click.echo(("\r\033[K" if self._live else "") + line)
