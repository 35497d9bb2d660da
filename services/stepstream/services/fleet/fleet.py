"""Run many agents at once: a group attempts each training task, and groups start as the learner keeps up."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from itertools import count

from stepstream.config import Settings
from stepstream.services.fleet.admission import Admission
from stepstream.services.fleet.agent import Agent, Assignment
from stepstream.services.fleet.curriculum import Curriculum
from stepstream.services.fleet.environment import Environment, load_environment
from stepstream.services.fleet.gateway_client import GatewayClient
from stepstream.services.fleet.ledger import Ledger
from stepstream.services.fleet.metrics import Metrics
from stepstream.services.fleet.task_mix import TaskMix, family_of
from stepstream.topics.ids import new_event_id

log = logging.getLogger(__name__)

RESTART_DELAY_S = 1.0
"""Before another attempt replaces a lost one."""


class Fleet:
    """Runs attempts until `stop`. Create it inside the event loop, and close it."""

    def __init__(
        self, settings: Settings, ledger: Ledger, metrics: Metrics, admission: Admission | None = None
    ) -> None:
        """Load the environment; without `admission` nothing limits how far agents run ahead of the learner.

        Raises:
            UnknownEnvironmentError: the configured environment cannot be loaded.
        """
        self._settings = settings.fleet
        self._environment: type[Environment] = load_environment(settings.fleet.environment)
        self._ledger = ledger
        self._metrics = metrics
        self._admission = admission
        self._curriculum = Curriculum(settings.fleet.curriculum_spacing)
        self._mix = TaskMix(settings.fleet.seed)
        self._stopping = asyncio.Event()
        self._cut_short = asyncio.Event()
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._client = GatewayClient(settings.fleet)
        self._agent = Agent(self._client, settings.fleet, self._environment, metrics, self._cut_short)

    def stop(self) -> None:
        """Start no more attempts; running ones get `fleet.shutdown_s` seconds, then end at their next step."""
        self._stopping.set()
        self._changed.set()

    def advance(self, version: int) -> None:
        """Note a published version, counted from the root of the lineage."""
        self._metrics.lineage_versions.set(version)
        if self._admission is not None:
            self._admission.advance(version, time.monotonic())
            self._changed.set()

    def add_decision(self, group_id: str, trajectory_id: str, reason: str) -> None:
        """Note the learner's decision about an attempt: trained on (empty reason), or dropped for a reason."""
        self._curriculum.add_decision(group_id, reason)
        if self._admission is not None:
            self._admission.add_decision(group_id, trajectory_id, trained=not reason)
            self._changed.set()

    def set_task_weights(self, weights: Mapping[str, float]) -> None:
        """Draw tasks by the weights of their families from now on; empty: equally."""
        log.info("weights of task families: %s", dict(weights) or "equal")
        self._mix.set_weights(weights)

    def set_outcome_only(self, outcome_only: bool) -> None:
        """Set whether equal outcomes are equal rewards from now on."""
        if self._admission is not None:
            self._admission.outcome_only = outcome_only

    async def run(self) -> None:
        """Run attempts until `stop`, or until `fleet.max_trajectories` have started and ended."""
        assignments = self._assignments()
        for number in count():
            if 0 < self._settings.max_trajectories <= number:
                break
            if number % self._settings.group_size == 0:
                await self._wait_for_admission()
            while len(self._running) >= self._settings.concurrency and not self._stopping.is_set():
                await self._wait_for_change(None)
            if self._stopping.is_set():
                break
            self._start(next(assignments))
        await self._finish_running()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _assignments(self) -> Iterator[Assignment]:
        tasks = self._mix.draw(self._environment.tasks(self._settings.seed, "train"))
        while True:
            before = self._curriculum.skipped
            task_id, group_id = self._curriculum.draw(tasks), new_event_id()
            self._metrics.skipped.inc(self._curriculum.skipped - before)
            self._metrics.count_draw(family_of(task_id), collapsed=self._mix.has_collapsed)
            self._curriculum.start_group(group_id, task_id)
            for _ in range(self._settings.group_size):
                yield Assignment(task_id, "train", group_id)

    def _start(self, assignment: Assignment) -> None:
        task = asyncio.create_task(self._attempt(assignment))
        self._running.add(task)
        self._metrics.running.set(len(self._running))
        task.add_done_callback(self._discard)

    def _discard(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._metrics.running.set(len(self._running))
        self._changed.set()

    async def _attempt(self, assignment: Assignment) -> None:
        while True:
            attempt = await self._agent.attempt(assignment)
            self._ledger.append(attempt)
            if self._admission is not None and assignment.group_id is not None and attempt.outcome is not None:
                self._admission.end_attempt(assignment.group_id, attempt.outcome)
            if attempt.status != "lost" or self._stopping.is_set():
                return
            # Another attempt replaces it, so that its group becomes complete.
            log.warning("lost trajectory %s: %s; starting another attempt", attempt.trajectory_id, attempt.error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), RESTART_DELAY_S)

    async def _wait_for_admission(self) -> None:
        if self._admission is None:
            return
        waiting_since = time.monotonic()
        while not self._admission.admits() and not self._stopping.is_set():
            self._metrics.held_back.set(1)
            if not await self._wait_for_change(waiting_since + self._admission.relief_after_s() - time.monotonic()):
                log.info("no version for %.0f s: admitting extra groups", time.monotonic() - waiting_since)
                self._admission.relieve()
                waiting_since = time.monotonic()
        self._metrics.held_back.set(0)
        self._admission.start_group()

    async def _wait_for_change(self, timeout: float | None) -> bool:
        """Wait until an attempt ends, a version comes or the fleet stops; return False after `timeout` seconds."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def _finish_running(self) -> None:
        while self._running and not self._stopping.is_set():
            await self._wait_for_change(None)
        if self._running:
            await asyncio.wait(self._running, timeout=self._settings.shutdown_s)
        self._cut_short.set()
        if self._running:
            await asyncio.wait(self._running, timeout=self._settings.shutdown_s)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
