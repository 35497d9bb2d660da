"""Run the fleet until SIGTERM or `fleet.max_trajectories`: `python -m stepstream.services.fleet`."""

import asyncio
import logging
import signal

import uvloop

from stepstream.config import Settings, SettingsError
from stepstream.core.process import Fatal, Stop, run, serve_metrics
from stepstream.jobs.rewards.spec import load_spec
from stepstream.learner.data.learning_signal import learns_from_equal_rewards
from stepstream.services.fleet.admission import Admission
from stepstream.services.fleet.environment import UnknownEnvironmentError, load_environment
from stepstream.services.fleet.fleet import Fleet
from stepstream.services.fleet.learner_progress import LearnerWatcher
from stepstream.services.fleet.ledger import Ledger, ledger_path
from stepstream.services.fleet.metrics import Metrics
from stepstream.services.fleet.outcome_reward import OutcomeReward
from stepstream.topics.client import wait_for_kafka

log = logging.getLogger(__name__)


def main(settings: Settings, stop: Stop) -> None:
    """Run the fleet; waits for Kafka first if the fleet follows the learner."""
    serve_metrics(settings.metrics)
    if follows_learner(settings):
        wait_for_kafka(settings.kafka, lambda: bool(stop))
    if not stop:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(settings))


async def work(settings: Settings) -> None:
    """Run agents and write the ledger until a signal.

    Raises:
        Fatal: the environment cannot be loaded, or a followed topic cannot be read.
    """
    loop = asyncio.get_running_loop()
    ledger = Ledger(ledger_path(settings))
    try:
        fleet = Fleet(settings, ledger, Metrics(), admission_of(settings))
    except UnknownEnvironmentError as error:
        raise Fatal(f"{error}; set STEPSTREAM_FLEET_ENVIRONMENT") from None
    failures: list[Exception] = []
    ready = asyncio.Event()

    def stop() -> None:
        fleet.stop()
        ready.set()

    def fail(error: Exception) -> None:
        failures.append(error)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    watcher: LearnerWatcher | None = None
    if follows_learner(settings):
        reward = outcome_reward_of(settings)
        fleet.set_outcome_only(reward.outcome_only)
        watcher = LearnerWatcher(
            settings,
            reward,
            lambda depth: loop.call_soon_threadsafe(fleet.advance, depth),
            lambda *decision: loop.call_soon_threadsafe(fleet.add_decision, *decision),
            lambda outcome_only: loop.call_soon_threadsafe(fleet.set_outcome_only, outcome_only),
            lambda weights: loop.call_soon_threadsafe(fleet.set_task_weights, weights),
            lambda: loop.call_soon_threadsafe(ready.set),
            lambda error: loop.call_soon_threadsafe(fail, error),
        )
    else:
        ready.set()
    try:
        await ready.wait()
        await fleet.run()
    finally:
        if watcher is not None:
            watcher.stop()
        await fleet.close()
        ledger.close()
    if failures:
        raise Fatal(f"cannot follow the model's versions: {failures[0]}; check Kafka and the schema registry")


def follows_learner(settings: Settings) -> bool:
    """Return True if the settings need the learner's versions and decisions."""
    return settings.fleet.max_ahead >= 0 or settings.fleet.curriculum_spacing > 1


def admission_of(settings: Settings) -> Admission | None:
    """Return the configured limit of trajectories ahead of the learner; None: unlimited."""
    if settings.fleet.max_ahead < 0:
        return None
    learner = settings.learner
    per_version = learner.groups_per_update * learner.updates_per_checkpoint * settings.fleet.group_size
    compares = not learns_from_equal_rewards(learner)
    return Admission(per_version, settings.fleet.max_ahead, settings.fleet.group_size, compares=compares)


def outcome_reward_of(settings: Settings) -> OutcomeReward:
    """Return the agent's reward under the default specification, before the topic is read."""
    environment = load_environment(settings.fleet.environment).name
    try:
        default = load_spec(settings.label.reward_spec)
    except SettingsError:
        default = None  # the file is on the label job's machine
    return OutcomeReward(environment, settings.fleet.agent, default)


if __name__ == "__main__":
    run("fleet", main)
