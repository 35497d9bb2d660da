"""`python -m stepstream.services.fleet`: agents work until SIGTERM or `fleet.max_trajectories`."""

import asyncio
import logging
import signal

from stepstream.config import Settings, SettingsError
from stepstream.core.process import Fatal, Stop, run, serve_metrics
from stepstream.jobs.rewards.spec import load_spec
from stepstream.learner.data.learning_signal import equal_rewards_teach
from stepstream.services.fleet.admission import Admission
from stepstream.services.fleet.environment import UnknownEnvironmentError, load_environment
from stepstream.services.fleet.fleet import Fleet
from stepstream.services.fleet.learner_progress import VersionFollower
from stepstream.services.fleet.ledger import Ledger, ledger_path
from stepstream.services.fleet.metrics import Metrics
from stepstream.services.fleet.outcome_reward import Paid
from stepstream.topics.client import wait_for_kafka

log = logging.getLogger(__name__)


def main(settings: Settings, stop: Stop) -> None:
    """Runs the fleet."""
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # the OpenAI client's: a line for each call
    serve_metrics(settings.metrics)
    if listens(settings):
        wait_for_kafka(settings.kafka, lambda: bool(stop))
    if not stop:
        asyncio.run(work(settings))


async def work(settings: Settings) -> None:
    """Runs the fleet until a signal; writes the ledger.

    Raises:
        Fatal: the environment or the topic of checkpoints cannot be had.
    """
    loop = asyncio.get_running_loop()
    ledger = Ledger(ledger_path(settings))
    try:
        fleet = Fleet(settings, ledger, Metrics(), admission_of(settings))
    except UnknownEnvironmentError as error:
        raise Fatal(f"{error}; set STEPSTREAM_FLEET_ENVIRONMENT") from None
    faults: list[Exception] = []
    ready = asyncio.Event()

    def stop() -> None:
        fleet.stop()
        ready.set()

    def fail(error: Exception) -> None:
        faults.append(error)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    follower: VersionFollower | None = None
    if listens(settings):
        paid = paid_of(settings)
        fleet.outcome_alone(paid.outcome_alone)
        follower = VersionFollower(
            settings,
            paid,
            lambda depth: loop.call_soon_threadsafe(fleet.advance, depth),
            lambda *decision: loop.call_soon_threadsafe(fleet.decided, *decision),
            lambda alone: loop.call_soon_threadsafe(fleet.outcome_alone, alone),
            lambda: loop.call_soon_threadsafe(ready.set),
            lambda error: loop.call_soon_threadsafe(fail, error),
        )
    else:
        ready.set()
    try:
        await ready.wait()
        await fleet.run()
    finally:
        if follower is not None:
            follower.stop()
        await fleet.close()
        ledger.close()
    if faults:
        raise Fatal(f"cannot follow the model's versions: {faults[0]}")


def listens(settings: Settings) -> bool:
    """Whether the fleet follows the learner's versions and decisions."""
    return settings.fleet.max_ahead >= 0 or settings.fleet.curriculum_spacing > 1


def admission_of(settings: Settings) -> Admission | None:
    """The back-pressure that the settings ask for; None: none."""
    if settings.fleet.max_ahead < 0:
        return None
    learner = settings.learner
    per_version = learner.groups_per_update * learner.updates_per_checkpoint * settings.fleet.group_size
    compares = not equal_rewards_teach(learner)
    return Admission(per_version, settings.fleet.max_ahead, settings.fleet.group_size, compares=compares)


def paid_of(settings: Settings) -> Paid:
    """What the fleet's agent is paid for, before any specification is known from the topic."""
    environment = load_environment(settings.fleet.environment).name
    try:
        default = load_spec(settings.label.reward_spec)
    except SettingsError:
        default = None  # the label job's file, on another machine
    return Paid(environment, settings.fleet.agent, default)


if __name__ == "__main__":
    run("fleet", main)
