"""`stepstream up`, `run` and `install`: run the embedded stack, run one of its processes, install Kafka."""

import os
import sys
import time

import click

from stepstream.config import MetricsSettings, Settings, environment_of, load, variable
from stepstream.core.process import serve_metrics
from stepstream.embedded.addresses import console_address, resolve_addresses

_POLL_S = 0.5


@click.command()
def install() -> None:
    """Fetch the broker's jars, check their hashes, create its start-up cache and the passwords of the store.

    Does nothing if all exist.
    """
    from stepstream.config.secrets import store_credentials
    from stepstream.embedded import install as embedded

    settings = resolve_addresses(load())
    for reads_only in (False, True):
        store_credentials(settings, reads_only=reads_only)
    if embedded.installed(settings):
        click.echo("Kafka is installed")
        return
    progress = _Progress()
    embedded.install(settings, progress)
    progress.done("Kafka is installed")


@click.command()
@click.option("--scale", multiple=True, metavar="JOB=WORKERS", help="Run several workers of a job (repeatable).")
@click.option("--only", multiple=True, metavar="PROCESS", help="Run only this one (repeatable); `worker`: all workers.")
def up(scale: tuple[str, ...], only: tuple[str, ...]) -> None:
    """Run the configured stack until Ctrl-C; restart a process that crashes; write one log file for each.

    A part whose address you set (STEPSTREAM_KAFKA_BOOTSTRAP, …) is not started but used at that address.
    `stack.more` names optional processes. STEPSTREAM_CONFIG=demo runs the demo's model and agents.
    """
    from stepstream.cli.interrupt import Interrupted, interruptible
    from stepstream.embedded import stack_metrics
    from stepstream.embedded.ports import Port, check_free
    from stepstream.embedded.stack import Event, Stack

    installation = _Progress()

    def print_event(event: Event) -> None:
        stack_metrics.observe(event)
        if event.name == "install":
            if event.state == "starting":
                installation(event.detail)
            else:
                installation.done("Kafka is installed")
        else:
            click.echo(f"{event.name:14} {event.state:10} {event.detail}".rstrip())

    settings = resolve_addresses(load())
    if scale:
        settings = settings.model_copy(update={"stack": settings.stack.model_copy(update={"scale": list(scale)})})
    host, port = settings.metrics.host, settings.stack.metrics_port
    if port:
        check_free([Port(host, port, "metrics of `stepstream up`", variable("stack", "metrics_port"))])
        serve_metrics(MetricsSettings(host=host, port=port))
    try:
        with interruptible(), Stack(settings, only or None, print_event, tolerant=True) as stack:
            _print_addresses(stack.settings, {process.name for process in stack.processes})
            while True:
                time.sleep(_POLL_S)
                stack.poll()
    except Interrupted:
        click.echo("stopped; the data stays")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("process")
@click.option(
    "--instance",
    type=click.IntRange(min=1),
    default=1,
    help="Run a further worker of a job: 2 is the second one on this machine.",
)
def run(process: str, instance: int) -> None:
    """Run one PROCESS of the stack (broker, registry, worker-0, …) in the foreground until Ctrl-C.

    STEPSTREAM_METRICS_PORT sets its metrics port. A further worker takes a free one by itself, and logs it.
    """
    from stepstream.embedded.processes import Process, scalable_jobs, select_parts, stack_parts

    settings = resolve_addresses(load())
    parts = stack_parts(settings)
    (selected,) = (part for part in select_parts(parts, [process]) if isinstance(part, Process))
    own = selected.environment
    if instance > 1:
        if process not in (jobs := scalable_jobs(parts)):
            raise click.UsageError(f"--instance: {process} runs once; jobs with workers: {', '.join(jobs)}")
        own = own | {variable("jobs", "instance"): str(instance), variable("metrics", "port"): "0"}
    chosen = {name: value for name, value in os.environ.items() if name == variable("metrics", "port")}
    environment = {**os.environ, **environment_of(settings), **own, **chosen}
    os.execve(sys.executable, [sys.executable, "-m", selected.module], environment)


def _print_addresses(settings: Settings, running: set[str]) -> None:
    addresses = {
        "broker": settings.kafka.bootstrap,
        "registry": settings.schema_registry.url,
        "store": settings.clickhouse.url,
        "gateway": f"{settings.fleet.gateway_url}/v1",
        "console": console_address(settings),
    }
    click.echo("")
    for name, address in addresses.items():
        if name in running:
            click.echo(f"{name:14} {address}")
    click.echo(f"{'logs':14} {settings.paths.data / 'logs'}\n\nCtrl-C stops everything.")


class _Progress:
    """Overwrites one line on a terminal; prints a line every 2 s elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._printed_at = 0.0

    def __call__(self, line: str) -> None:
        if self._live:
            click.echo(f"\r\033[K{line}", nl=False)
        elif time.monotonic() - self._printed_at > 2 or "fetching" not in line:
            self._printed_at = time.monotonic()
            click.echo(line)

    def done(self, line: str) -> None:
        click.echo(("\r\033[K" if self._live else "") + line)
