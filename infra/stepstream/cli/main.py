"""Dispatch the `stepstream` command and map errors to exit statuses.

A subcommand's module is imported only when it runs, so that `--help` needs no package but click.

Exit status:
    0    success; `doctor`: no fault; `up`: stopped cleanly by Ctrl-C or SIGTERM
    1    failure, or `doctor` found a fault; the last line names the cause and the remedy
    2    wrong usage, or an invalid setting
    3    a broker, registry or store did not answer within its deadline
    130  interrupted
"""

import importlib
import os
import sys
from collections.abc import Sequence

import click

FAULT, MISUSED, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130
_EXTRAS = {"pyarrow": "datasets"}
"""Extra to install for a missing module; `demo` for all others."""

# name: (module:attribute, line of `--help`)
COMMANDS = {
    "alarms": ("stepstream.cli.alarms:alarms", "List the alarms: a reward rose while a guard metric fell."),
    "config": ("stepstream.cli.config:config", "Show the effective settings and the source of each value."),
    "console": ("stepstream.cli.console:console", "Add, list and remove the users of the console."),
    "consent": ("stepstream.cli.consent:consent", "Set and list the consent of tenants, persons and agents."),
    "dead-letters": (
        "stepstream.cli.dead_letters:dead_letters",
        "List rejected records; send them again after a mend.",
    ),
    "decisions": (
        "stepstream.cli.decisions:decisions",
        "List and show decisions of the control plane; approve, reject, undo, freeze.",
    ),
    "demo": ("stepstream.cli.demo:demo", "Run the whole loop until the policy is clearly better."),
    "demo-control": ("stepstream.cli.demo_control:demo_control", "Let things happen to a fleet; judge the decisions."),
    "demo-model": ("stepstream.cli.demo_model:demo_model", "Let a real model learn behind vLLM; roll versions back."),
    "doctor": ("stepstream.cli.doctor:doctor", "Check the parts; name the remedy for each fault."),
    "erase": ("stepstream.cli.erase:erase", "Erase a person; list the checkpoints that trained on them."),
    "erasures": ("stepstream.cli.erasures:erasures", "List and show the proofs of erasures."),
    "explain": ("stepstream.cli.explain:explain", "Explain why a trajectory was or was not trained on."),
    "export": ("stepstream.cli.datasets:export", "Write governed trajectories to a file of another format."),
    "harness": ("stepstream.cli.harness:harness", "Import, compare, try, promote and take back harness versions."),
    "import": ("stepstream.cli.datasets:import_", "Publish the trajectories of a file of another format."),
    "install": ("stepstream.cli.up:install", "Fetch the broker's jars and create its start-up cache."),
    "keys": ("stepstream.cli.keys:keys", "Create, list, change and revoke API keys of the gateway."),
    "large-records": (
        "stepstream.cli.large_records:large_records",
        "Remove content of large records that no record names.",
    ),
    "master-key": ("stepstream.cli.master_key:master_key", "Create and replace the master keys of sealed records."),
    "models": ("stepstream.cli.models:models", "Publish a base model; list versions; promote them and roll them back."),
    "plan": ("stepstream.cli.plan:plan", "Size a deployment for a number of agents and steps per second."),
    "plan-memory": ("stepstream.cli.plan_memory:plan_memory", "Estimate the memory of training a model on GPUs."),
    "policy": ("stepstream.cli.policy:policy", "Apply and list governance and control policies."),
    "quarantine": ("stepstream.cli.quarantine:quarantine", "List, release and hold trajectories kept from training."),
    "query": ("stepstream.cli.query:query", "Print a view of the analytics store, or a read-only query."),
    "rebuild": ("stepstream.cli.models:rebuild", "Rebuild a published version from the log, bit for bit."),
    "replay": ("stepstream.cli.replay:replay", "Govern past records again under the current policies."),
    "rewards": ("stepstream.cli.rewards:rewards", "Check, publish, show and list reward specifications."),
    "run": ("stepstream.cli.up:run", "Run one process of the stack in the foreground."),
    "schemas": ("stepstream.cli.schemas:schemas", "List the event schemas; regenerate code and docs from them."),
    "simulate": ("stepstream.cli.simulate:simulate", "Show what a control policy would have done."),
    "store": ("stepstream.cli.store:store", "Migrate the store's tables and views."),
    "topics": ("stepstream.cli.topics:topics", "List the topics; create or alter them on a cluster."),
    "up": ("stepstream.cli.up:up", "Run the configured stack until Ctrl-C."),
    "verify": ("stepstream.cli.verify:verify", "Check verification files; calibrate judges."),
    "watch": ("stepstream.cli.watch:watch", "Follow models: versions, decisions, and what each worker serves."),
}


class LazyGroup(click.Group):
    """A group that lists its commands from `COMMANDS` and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help's list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="stepstream")
def cli() -> None:
    """Turn a fleet of deployed LLM agents into agents that learn from their own work."""


def main() -> None:
    """Run the command line of this process and exit with its status."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status.

    An expected error prints its message alone; a defect propagates with its traceback.
    """
    try:
        result = cli.main(list(arguments), prog_name="stepstream", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the pipe, as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    except Exception as error:
        status = _status_of(error)
        if status is None:
            raise
        click.echo(f"stepstream: {_message_of(error)}", err=True)
        return status
    return result if isinstance(result, int) else 0


def _status_of(error: Exception) -> int | None:
    """Return the exit status of an expected error; None for a defect."""
    from confluent_kafka import KafkaException

    from stepstream.config import SettingsError
    from stepstream.core.process import Fatal
    from stepstream.embedded.errors import StackError, UnknownProcess
    from stepstream.topics.admin import RegistryNotReady
    from stepstream.topics.client import KafkaUnavailable
    from stepstream.topics.codec import RegistryUnavailable
    from stepstream.topics.producer import DeliveryFailed
    from stepstream.topics.registry_client import RegistryRefused

    name = type(error).__name__  # the classes of the jobs are not installed with the core
    if isinstance(error, SettingsError | UnknownProcess):
        return MISUSED
    if isinstance(error, KafkaUnavailable | RegistryNotReady | RegistryUnavailable):
        return UNREACHABLE
    if name == "StoreUnavailableError":
        return UNREACHABLE
    if isinstance(error, Fatal | StackError | DeliveryFailed | RegistryRefused | KafkaException):
        return FAULT
    if name == "MigrationError":
        return FAULT
    if isinstance(error, OSError) and error.filename:
        return FAULT
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("stepstream"):
        extra = _EXTRAS.get(error.name.partition(".")[0], "demo")
        error.msg += f": this command needs more packages than the core, pip install 'stepstream[{extra}]'"
        return FAULT
    return None


def _message_of(error: Exception) -> str:
    """Return an error's message without the credentials of addresses."""
    from confluent_kafka import KafkaException

    from stepstream.config import masked

    return masked(f"Kafka: {error.args[0].str()}" if isinstance(error, KafkaException) else str(error))


if __name__ == "__main__":
    main()
