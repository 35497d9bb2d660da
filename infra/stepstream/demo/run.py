"""Run the loop from a new lineage to the target, then check that no event was lost or duplicated.

1. Evaluate the base model on the held-out tasks.
2. Start the fleet and wait until training success passes the target.
3. Evaluate the held-out tasks again; if they miss the target, continue with 2.
4. Stop the fleet, wait until the tables hold all that the agents sent, and compare them with the agents' ledger.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from stepstream.demo.accounting import Reconciliation, SentTrajectory, reconcile
from stepstream.demo.labels import LabelReader
from stepstream.demo.memory import MemoryWatch
from stepstream.demo.report import Report
from stepstream.demo.run_stats import Rate, RunStats, Snapshot
from stepstream.demo.view import View, percent
from stepstream.embedded.stack import Stack
from stepstream.services.fleet.evaluate import evaluate
from stepstream.services.fleet.ledger import Attempt, ledger_path, read_ledger
from stepstream.topics.ids import now_us

REFRESH_INTERVAL_S = 1.0
ARRIVAL_POLL_S = 0.2


class TargetMissed(Exception):
    """The run did not reach its target within `demo.deadline_s`; the message states the success that it reached."""


class Demo:
    """One run over a started stack whose fleet is deferred."""

    def __init__(self, stack: Stack, view: View, root_version: int) -> None:
        """Prepare the run; `root_version` is the version of its base model."""
        self._stack = stack
        self._settings = stack.settings
        self._view = view
        self._root = root_version
        self._sent: list[SentTrajectory] = []
        self._labels = LabelReader(self._settings)
        self._stats = RunStats(self._settings, now_us(), root_version)

    def run(self, memory: MemoryWatch) -> Report:
        """Run to the target and return the report; blocks for minutes.

        Raises:
            TargetMissed: the deadline passed first.
            StackError: a process failed.
        """
        before = self._evaluate("before")
        self._view.print_line(f"held-out success of the base model: {percent(before)}")
        began = time.monotonic()
        self._stack.start_process("fleet")
        after = self._learn(began)
        seconds = time.monotonic() - began
        self._view.print_line(f"held-out success now: {percent(after)}, {seconds:.0f} s after the start of the loop")
        self._stack.stop_process("fleet")
        self._sent += _sent_trajectories(read_ledger(ledger_path(self._settings)))
        reconciliation = self._reconcile()
        snapshot = self._stats.snapshot()
        facts = self._facts(before, after, seconds, reconciliation, snapshot)
        facts["peak_rss_mb"] = round(memory.stop())
        self._stats.close()
        self._labels.close()
        return Report(facts, snapshot.by_version, self._settings.demo.target)

    def _learn(self, began: float) -> Rate:
        """Update the view until held-out success passes the target; return that success."""
        demo = self._settings.demo
        tries = 0
        while True:
            self._stack.poll()
            snapshot = self._stats.snapshot()
            elapsed = time.monotonic() - began
            self._view.update(snapshot, elapsed)
            if elapsed > demo.deadline_s:
                raise TargetMissed(
                    f"success is {percent(snapshot.recent)} after {elapsed:.0f} s, below the target of "
                    f"{100 * demo.target:.0f} %: see the logs in {self._settings.paths.data / 'logs'}, or raise "
                    "STEPSTREAM_DEMO_DEADLINE_S"
                )
            recent = snapshot.recent
            if recent.n >= demo.window and recent.value is not None and recent.value >= demo.target + demo.margin:
                tries += 1
                after = self._evaluate(f"after-{tries}")
                if after.value is not None and after.value >= demo.target:
                    return after
                self._view.print_line(f"held-out success is {percent(after)}: below the target, learning continues")
            time.sleep(REFRESH_INTERVAL_S)

    def _evaluate(self, name: str) -> Rate:
        """Run the held-out tasks, wait for their labels and return their success."""
        attempts = asyncio.run(evaluate(self._settings, self._settings.demo.held_out, name))
        self._sent += _sent_trajectories(attempts)
        ids = [attempt.trajectory_id for attempt in attempts]
        self._wait_until(lambda: not self._stats.unlabelled(ids))
        return self._stats.held_out(ids)

    def _reconcile(self) -> Reconciliation:
        """Wait for all sent records, at most `demo.drain_s` seconds, and compare."""
        ids = [sent.trajectory_id for sent in self._sent]
        ended = [sent.trajectory_id for sent in self._sent if sent.ended]
        steps = sum(sent.steps for sent in self._sent)

        def have_arrived() -> bool:
            stored = sum(rows for _, rows in self._stats.stored_steps(ids).values())
            return stored >= steps and not self._stats.unlabelled(ended)

        self._wait_until(have_arrived)
        return reconcile(self._sent, self._stats.stored_steps(ids), self._labels.read())

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Block until `condition` holds, at most `demo.drain_s` seconds."""
        deadline = time.monotonic() + self._settings.demo.drain_s
        while not condition() and time.monotonic() < deadline:
            self._stack.poll()
            time.sleep(ARRIVAL_POLL_S)

    def _facts(
        self, before: Rate, after: Rate, seconds: float, reconciliation: Reconciliation, snapshot: Snapshot
    ) -> dict[str, Any]:
        newest = self._root if snapshot.newest_version is None else snapshot.newest_version
        return {
            **before.facts("success_before"),
            **after.facts("success_after"),
            "seconds_to_target": round(seconds, 1),
            "model": self._settings.learner.model,
            "root_version": self._root,
            "newest_version": newest,
            "policy_versions": newest - self._root + 1,
            "steps_produced": reconciliation.steps_sent,
            "steps_in_clickhouse": reconciliation.steps_stored,
            "trajectories_produced": reconciliation.trajectories_sent,
            "trajectories_labeled": reconciliation.trajectories_labelled,
            "lost": reconciliation.lost,
            "duplicated": reconciliation.duplicated,
            "staleness_max": int(snapshot.staleness_max or 0),
            "staleness_bound": self._settings.learner.staleness_bound,
            "versions_served_max_lag": self._stats.served_max_lag(),
        }


def _sent_trajectories(attempts: Iterable[Attempt]) -> list[SentTrajectory]:
    """Return the ledger entries of all attempts that sent a step."""
    return [
        SentTrajectory(attempt.trajectory_id, attempt.steps, bool(attempt.feedback), attempt.unsure)
        for attempt in attempts
        if attempt.steps
    ]
