"""Runs the loop from a fresh lineage to the target, and settles its accounts.

Order: the held-out tasks on the base model; the fleet, watched until training success passes the target; the
held-out tasks again; then everything that was sent is awaited in the tables and compared with what the agents say
they sent.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from stepstream.demo.accounting import Account, Sent, settle
from stepstream.demo.figures import Figures, Rate, Snapshot
from stepstream.demo.labels import LabelReader
from stepstream.demo.memory import MemoryWatch
from stepstream.demo.report import Report
from stepstream.demo.view import View, percent
from stepstream.embedded.stack import Stack
from stepstream.services.fleet.evaluate import evaluate
from stepstream.services.fleet.ledger import Attempt, ledger_path, read_ledger
from stepstream.topics.ids import now_us

WATCH_EVERY_S = 1.0
ARRIVAL_EVERY_S = 0.2


class TargetMissed(Exception):
    """The loop did not reach its target within the declared time; the message says how far it came."""


class Demo:
    """One run over a started stack whose fleet is held back."""

    def __init__(self, stack: Stack, view: View, root_version: int) -> None:
        """Nothing runs yet; `root_version` is the version of the base model that this run starts from."""
        self._stack = stack
        self._settings = stack.settings
        self._view = view
        self._root = root_version
        self._sent: list[Sent] = []
        self._labels = LabelReader(self._settings)
        self._figures = Figures(self._settings, now_us(), root_version)

    def run(self, memory: MemoryWatch) -> Report:
        """The whole run; takes minutes.

        Raises:
            TargetMissed: the deadline passed first.
            StackError: a process was given up.
        """
        before = self._evaluate("before")
        self._view.say(f"held-out success of the base model: {percent(before)}")
        began = time.monotonic()
        self._stack.start_process("fleet")
        after = self._learn(began)
        seconds = time.monotonic() - began
        self._view.say(f"held-out success now: {percent(after)}, {seconds:.0f} s after the start of the loop")
        self._stack.stop_process("fleet")
        self._sent += _sent(read_ledger(ledger_path(self._settings)))
        account = self._settle()
        snapshot = self._figures.snapshot()
        facts = self._facts(before, after, seconds, account, snapshot)
        facts["peak_rss_mb"] = round(memory.stop())
        self._figures.close()
        self._labels.close()
        return Report(facts, snapshot.by_version, self._settings.demo.target)

    def _learn(self, began: float) -> Rate:
        """Watches until the target holds on held-out tasks; returns their success."""
        demo = self._settings.demo
        tries = 0
        while True:
            self._stack.poll()
            snapshot = self._figures.snapshot()
            elapsed = time.monotonic() - began
            self._view.show(snapshot, elapsed)
            if elapsed > demo.deadline_s:
                raise TargetMissed(
                    f"success {percent(snapshot.recent)} after {elapsed:.0f} s, target {100 * demo.target:.0f} %; "
                    f"logs in {self._settings.paths.data / 'logs'}"
                )
            recent = snapshot.recent
            if recent.n >= demo.window and recent.value is not None and recent.value >= demo.target + demo.margin:
                tries += 1
                after = self._evaluate(f"after-{tries}")
                if after.value is not None and after.value >= demo.target:
                    return after
                self._view.say(f"held-out success is {percent(after)}: not there yet")
            time.sleep(WATCH_EVERY_S)

    def _evaluate(self, name: str) -> Rate:
        """Success on the held-out tasks, as the tables tell it once every trajectory was labelled."""
        attempts = asyncio.run(evaluate(self._settings, self._settings.demo.held_out, name))
        self._sent += _sent(attempts)
        ids = [attempt.trajectory_id for attempt in attempts]
        self._await(lambda: self._figures.labelled(ids) == len(ids))
        return self._figures.held_out(ids)

    def _settle(self) -> Account:
        """Waits until everything sent has arrived, or `demo.drain_s` seconds, and compares."""
        ids = [sent.trajectory_id for sent in self._sent]
        ended = [sent.trajectory_id for sent in self._sent if sent.ended]
        steps = sum(sent.steps for sent in self._sent)

        def arrived() -> bool:
            stored = sum(rows for _, rows in self._figures.stored_steps(ids).values())
            return stored >= steps and self._figures.labelled(ended) == len(ended)

        self._await(arrived)
        return settle(self._sent, self._figures.stored_steps(ids), self._labels.read())

    def _await(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._settings.demo.drain_s
        while not condition() and time.monotonic() < deadline:
            self._stack.poll()
            time.sleep(ARRIVAL_EVERY_S)

    def _facts(self, before: Rate, after: Rate, seconds: float, account: Account, snapshot: Snapshot) -> dict[str, Any]:
        newest = self._root if snapshot.newest_version is None else snapshot.newest_version
        return {
            **before.facts("success_before"),
            **after.facts("success_after"),
            "seconds_to_target": round(seconds, 1),
            "model": self._settings.learner.model,
            "root_version": self._root,
            "newest_version": newest,
            "policy_versions": newest - self._root + 1,
            "steps_produced": account.steps_sent,
            "steps_in_clickhouse": account.steps_stored,
            "trajectories_produced": account.trajectories_sent,
            "trajectories_labeled": account.trajectories_labelled,
            "lost": account.lost,
            "duplicated": account.duplicated,
            "staleness_max": int(snapshot.staleness_max or 0),
            "staleness_bound": self._settings.learner.staleness_bound,
            "versions_served_max_lag": self._figures.served_max_lag(),
        }


def _sent(attempts: Iterable[Attempt]) -> list[Sent]:
    """The agents' word, of every attempt that sent anything."""
    return [
        Sent(attempt.trajectory_id, attempt.steps, bool(attempt.feedback), attempt.unsure)
        for attempt in attempts
        if attempt.steps
    ]
