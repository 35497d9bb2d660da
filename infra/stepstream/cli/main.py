"""The `stepstream` command. Commands are imported when they run, so that `--help` needs nothing but click.

Exit status:
    0    done; `doctor`: no fault; `up`: stopped by Ctrl-C or SIGTERM, cleanly
    1    it failed, or `doctor` found a fault; the last line says why and what to do
    2    wrong usage, or a setting that cannot be used
    3    a broker, registry or store did not answer within its deadline
    130  interrupted before it was done
"""

import importlib
import os
import sys
from collections.abc import Sequence

import click

FAULT, MISUSED, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130
_EXTRAS = {"pyarrow": "datasets"}
"""What to install for a module that is missing, where it is less than everything."""

# name: (module:attribute, what `--help` says)
COMMANDS = {
    "alarms": ("stepstream.cli.alarms:alarms", "List where what is rewarded rose while a guard fell."),
    "config": ("stepstream.cli.config:config", "Show the effective settings and where each came from."),
    "consent": ("stepstream.cli.consent:consent", "Set and list what tenants, persons and agents allow."),
    "demo": ("stepstream.cli.demo:demo", "Run the whole loop until the policy is clearly better."),
    "doctor": ("stepstream.cli.doctor:doctor", "Check the parts and say what to do about each fault."),
    "erase": ("stepstream.cli.erase:erase", "Erase a person; list the checkpoints that trained on them."),
    "explain": ("stepstream.cli.explain:explain", "Tell why a trajectory was or was not trained on."),
    "export": ("stepstream.cli.datasets:export", "Write governed trajectories in another format."),
    "import": ("stepstream.cli.datasets:import_", "Publish the trajectories of a file of another format."),
    "install": ("stepstream.cli.up:install", "Fetch the broker's jars and make its start-up cache."),
    "keys": ("stepstream.cli.keys:keys", "Make, list and revoke API keys of the gateway."),
    "models": ("stepstream.cli.models:models", "Publish a base model; list published versions."),
    "policy": ("stepstream.cli.policy:policy", "Apply, show and list the governance policies of tenants."),
    "quarantine": ("stepstream.cli.quarantine:quarantine", "List what is held out of training; release or hold it."),
    "rebuild": ("stepstream.cli.models:rebuild", "Rebuild a published version from the log, bit for bit."),
    "replay": ("stepstream.cli.replay:replay", "Govern history anew under the policies of now."),
    "rewards": ("stepstream.cli.rewards:rewards", "Check, put up, show and list reward specifications."),
    "run": ("stepstream.cli.up:run", "Run one process of the stack in the foreground."),
    "schemas": ("stepstream.cli.schemas:schemas", "List the event schemas; regenerate what comes from them."),
    "store": ("stepstream.cli.store:store", "Migrate the analytics store."),
    "topics": ("stepstream.cli.topics:topics", "List the topics; apply them to a cluster."),
    "up": ("stepstream.cli.up:up", "Run the stack until Ctrl-C."),
    "verify": ("stepstream.cli.verify:verify", "Check verification files; measure what a judge is worth."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and help lines, and imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help's list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stepstream")
def cli() -> None:
    """Turns a fleet of deployed LLM agents into agents that learn from their own work."""


def run(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status. Faults that have a message are told in it alone."""
    try:
        result = cli.main(list(arguments), prog_name="stepstream", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # the reader, as `head`, had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    except Exception as error:
        status = _status_of(error)
        if status is None:
            raise
        click.echo(f"stepstream: {_told(error)}", err=True)
        return status
    return result if isinstance(result, int) else 0


def _told(error: Exception) -> str:
    """Its message, without credentials of addresses."""
    from confluent_kafka import KafkaException

    from stepstream.config import masked

    return masked(f"Kafka: {error.args[0].str()}" if isinstance(error, KafkaException) else str(error))


def _status_of(error: Exception) -> int | None:
    """The exit status of an error whose message is made for people; None for a defect."""
    from confluent_kafka import KafkaException

    from stepstream.config import SettingsError
    from stepstream.embedded.errors import StackError, UnknownProcess
    from stepstream.topics.admin import RegistryNotReady
    from stepstream.topics.client import KafkaUnavailable
    from stepstream.topics.codec import RegistryUnavailable
    from stepstream.topics.producer import DeliveryFailed
    from stepstream.topics.registry_client import RegistryRefused

    name = type(error).__name__  # of the jobs, which the core does without
    if isinstance(error, SettingsError | UnknownProcess):
        return MISUSED
    if isinstance(error, KafkaUnavailable | RegistryNotReady | RegistryUnavailable):
        return UNREACHABLE
    if name == "StoreUnavailableError":
        return UNREACHABLE
    if isinstance(error, StackError | DeliveryFailed | RegistryRefused | KafkaException) or name == "MigrationError":
        return FAULT
    if isinstance(error, OSError) and error.filename:
        return FAULT
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("stepstream"):
        extra = _EXTRAS.get(error.name.partition(".")[0], "demo")
        error.msg += f": this command needs more packages than the core, pip install 'stepstream[{extra}]'"
        return FAULT
    return None


def main() -> None:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
