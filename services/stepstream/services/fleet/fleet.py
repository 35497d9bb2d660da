"""Many agents at once: each training task is attempted by a group, and groups start as the learner keeps up."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from itertools import count

from stepstream.config import Settings
from stepstream.services.fleet.admission import Admission
from stepstream.services.fleet.agent import Agent, Assignment
from stepstream.services.fleet.curriculum import Curriculum
from stepstream.services.fleet.environment import Environment, load_environment
from stepstream.services.fleet.gateway_client import GatewayClient
from stepstream.services.fleet.ledger import Ledger
from stepstream.services.fleet.metrics import Metrics
from stepstream.topics.ids import new_event_id

log = logging.getLogger(__name__)

AFTER_LOSS_S = 1.0


class Fleet:
    """Runs attempts until told to stop. Create it inside the event loop, and close it."""

    def __init__(
        self, settings: Settings, ledger: Ledger, metrics: Metrics, admission: Admission | None = None
    ) -> None:
        """Without `admission` agents run as fast as they can.

        Raises:
            UnknownEnvironmentError: the configured environment cannot be loaded.
        """
        self._settings = settings.fleet
        self._environment: type[Environment] = load_environment(settings.fleet.environment)
        self._ledger = ledger
        self._metrics = metrics
        self._admission = admission
        self._curriculum = Curriculum(settings.fleet.curriculum_spacing)
        self._stopping = asyncio.Event()
        self._halted = asyncio.Event()
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._client = GatewayClient(settings.fleet)
        self._agent = Agent(self._client, settings.fleet, self._environment, metrics, self._halted)

    def stop(self) -> None:
        """Starts nothing more; what runs gets `fleet.shutdown_s` seconds to finish, then ends at its next step."""
        self._stopping.set()
        self._changed.set()

    def advance(self, version: int) -> None:
        """A version was published; `version` counts from the root of the lineage."""
        self._metrics.lineage_versions.set(version)
        if self._admission is not None:
            self._admission.advance(version, time.monotonic())
            self._changed.set()

    def decided(self, group_id: str, trajectory_id: str, reason: str) -> None:
        """The learner trained on an attempt of a group (no reason), or let go of it."""
        self._curriculum.decided(group_id, reason)
        if self._admission is not None:
            self._admission.decided(group_id, trajectory_id, trained=not reason)
            self._changed.set()

    def outcome_alone(self, alone: bool) -> None:
        """Whether equal outcomes are equal rewards from now on."""
        if self._admission is not None:
            self._admission.outcome_alone = alone

    async def run(self) -> None:
        """Works until `stop`, or until `fleet.max_trajectories` have been started and ended."""
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
        await self._end()

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    def _assignments(self) -> Iterator[Assignment]:
        tasks = self._environment.tasks(self._settings.seed, "train")
        while True:
            before = self._curriculum.passed_over
            task_id, group_id = self._curriculum.draw(tasks), new_event_id()
            self._metrics.passed_over.inc(self._curriculum.passed_over - before)
            self._curriculum.started(group_id, task_id)
            for _ in range(self._settings.group_size):
                yield Assignment(task_id, "train", group_id)

    def _start(self, assignment: Assignment) -> None:
        task = asyncio.create_task(self._attempt(assignment))
        self._running.add(task)
        self._metrics.running.set(len(self._running))
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._metrics.running.set(len(self._running))
        self._changed.set()

    async def _attempt(self, assignment: Assignment) -> None:
        while True:
            attempt = await self._agent.attempt(assignment)
            self._ledger.append(attempt)
            if self._admission is not None and assignment.group_id is not None and attempt.outcome is not None:
                self._admission.ended(assignment.group_id, attempt.outcome)
            if attempt.status != "lost" or self._stopping.is_set():
                return
            # Another attempt takes its place, so that its group becomes whole.
            log.warning("trajectory %s was lost: %s", attempt.trajectory_id, attempt.error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), AFTER_LOSS_S)

    async def _wait_for_admission(self) -> None:
        if self._admission is None:
            return
        held_since = time.monotonic()
        while not self._admission.admits() and not self._stopping.is_set():
            self._metrics.held_back.set(1)
            if not await self._wait_for_change(held_since + self._admission.patience_s() - time.monotonic()):
                log.info("no version for %.0f s: another group starts ahead of time", time.monotonic() - held_since)
                self._admission.relieve()
                held_since = time.monotonic()
        self._metrics.held_back.set(0)
        self._admission.start_group()

    async def _wait_for_change(self, timeout: float | None) -> bool:
        """Waits until an attempt ends, a version comes or the fleet is stopped; False if `timeout` passed first."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def _end(self) -> None:
        while self._running and not self._stopping.is_set():
            await self._wait_for_change(None)
        if self._running:
            await asyncio.wait(self._running, timeout=self._settings.shutdown_s)
        self._halted.set()
        if self._running:
            await asyncio.wait(self._running, timeout=self._settings.shutdown_s)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
