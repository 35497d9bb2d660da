"""Run one fleet under the control plane and let things happen to it, each after the one before was dealt with.

1. Measure success while nothing has happened.
2. Let each event happen, in an order drawn from the seed; wait until the control plane has answered it and its tests
   have ended, or until the stretch is over. In the quiet stretch, only wait.
3. Measure success again, and judge the decisions.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from stepstream.demo.control.happenings import Happenings
from stepstream.demo.control.log_reader import LogReader
from stepstream.demo.control.production import Point, Production
from stepstream.demo.control.scoring import Score, first_right, judge
from stepstream.demo.control.timeline import NAMES, Kind, Occurrence
from stepstream.demo.control.world import TOOL_NAMES
from stepstream.demo.run_stats import Rate
from stepstream.demo.view import View, percent
from stepstream.embedded.errors import StackError
from stepstream.embedded.stack import Stack
from stepstream.topics.events import Decision
from stepstream.topics.ids import now_us

POLL_S = 1.0
SETTLED_S = 8.0
"""Time without an update of the learner and without a decision but `hold` after which an answered event is over."""
RETRAINED_S = 30.0
"""Time after a rollback of weights before the quiet stretch: the learner reads its groups again for the stable one."""
LEARNT: tuple[Kind, ...] = ("weights_can_learn", "gameable_reward")
"""Events that are answered only after the weights have changed."""
STOP_S = 10.0
MEASURED = 200
"""Closed trajectories of a measurement: its 95 % interval is then at most 14 points wide."""
LONGEST_MEASURE = 8
"""Longest measurement on a slow machine, in lengths of a measurement."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of a run, in seconds."""

    measure_s: float = 20.0
    """Length of the first and the last measurement, with `MEASURED` trajectories or more."""
    stretch_s: float = 70.0
    """Longest time for the answer to an event."""
    learn_s: float = 150.0
    """The same where the answer has to be learnt first."""
    quiet_s: float = 40.0
    """Length of the quiet stretch."""

    def with_time_factor(self, factor: float) -> Self:
        """Return the pace with longer times for the answers."""
        return replace(self, stretch_s=self.stretch_s * factor, learn_s=self.learn_s * factor)


LONG = Pace()
SHORT = Pace(measure_s=15, stretch_s=240, quiet_s=15)
"""For CI, where other tests share the machine."""


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that the report shows."""

    before: Rate
    after: Rate
    occurrences: tuple[Occurrence, ...]
    score: Score
    decisions: tuple[Decision, ...]
    """Decisions other than `hold`."""
    holds: tuple[Decision, ...]
    """Decisions to hold."""
    states: dict[str, str]
    """State of each decision, by id."""
    curve: tuple[Point, ...]


class ControlDemo:
    """One run over a started stack."""

    def __init__(self, stack: Stack, view: View, log: LogReader, pace: Pace, seed: int) -> None:
        self._stack, self._settings, self._view = stack, stack.settings, view
        self._log, self._pace, self._seed = log, pace, seed
        agent = self._settings.fleet.agent
        self._production = Production(self._settings, agent)
        self._happenings = Happenings(self._settings, log, self._production, agent, seed)
        self._fleet: subprocess.Popen[bytes] | None = None
        self._undone: set[Kind] = set()
        self._printed: set[str] = set()
        self._began_us = 0

    def run(self, order: Sequence[Kind]) -> Result:
        """Run everything and return the result; blocks for minutes.

        Raises:
            StackError: a process failed, or a command was refused.
        """
        self._start_fleet()
        try:
            self._wait_until(lambda: self._rate_since(self._began_us).n > 0, self._settings.demo.drain_s)
            before_us = now_us()
            self._measure(before_us)
            first_us = now_us()
            occurrences = [self._stretch(kind) for kind in order]
            after_us = now_us()
            self._measure(after_us)
            end_us = now_us()
            self._sleep(self._settings.store.batch_s + self._settings.label.end_grace_s)
        finally:
            self._stop_fleet()
        self._log.poll()
        return self._result(occurrences, (before_us, first_us), (after_us, end_us))

    def _result(self, occurrences: list[Occurrence], before: tuple[int, int], after: tuple[int, int]) -> Result:
        decisions = self._log.decisions
        pulled = tuple(one for one in decisions if one["action"] != "hold")
        holds = tuple(one for one in decisions if one["action"] == "hold")
        result = Result(
            self._production.success(*before),
            self._production.success(*after),
            tuple(occurrences),
            judge(occurrences, self._log.done, self._undone),
            pulled,
            holds,
            {one["event_id"]: self._log.state_of(one) for one in pulled},
            tuple(self._production.curve(before[0], after[1])),
        )
        self._production.close()
        return result

    def _stretch(self, kind: Kind) -> Occurrence:
        """Let one event happen and wait for the end of its stretch."""
        if kind == "quiet":
            self._settle(kind, time.monotonic() + self._pace.stretch_s)
            began_us = now_us()
            self._sleep(self._pace.quiet_s)
            return Occurrence(kind, began_us, now_us())
        began_us = now_us()
        event = Occurrence(kind, began_us, 2**62, self._happenings.happen(kind))
        longest_s = self._pace.learn_s if kind in LEARNT else self._pace.stretch_s
        deadline = time.monotonic() + longest_s
        while time.monotonic() < deadline and not self._is_over(event):
            if kind == "better_examples" and not event.subject:
                event = replace(event, subject=self._happenings.propose_examples(began_us, now_us()))
            self._sleep(POLL_S)
        if self._is_undone(event):
            self._undone.add(kind)
        self._happenings.end(kind)
        self._settle(kind, deadline)
        if self._is_undone(event):
            self._undone.add(kind)
        return replace(event, ended_us=now_us())

    def _is_over(self, event: Occurrence) -> bool:
        """Return True once the control plane has answered the event and a bad one is undone."""
        return first_right(event, self._log.done) is not None and self._is_undone(event)

    def _is_undone(self, event: Occurrence) -> bool:
        """Return True if nothing that serves shows the event's effect any more, by the topics."""
        if event.kind == "tool_breaks":
            stable = self._log.harness.stable
            tools = [] if stable is None else stable["tools"]
            return any(tool["name"] == TOOL_NAMES[0] and not tool["enabled"] for tool in tools)
        if event.kind == "poisoned_checkpoint":
            served = self._log.weights
            return int(event.subject) not in (served.stable, served.canary)
        if event.kind == "gameable_reward":
            return self._log.is_paused
        return True

    def _settle(self, kind: Kind, deadline: float) -> None:
        """Wait until no canary runs, no alarm is active and updates and decisions have ceased.

        The alarm of a gamed reward clears once the repaired reward judges; then learning resumes, which belongs to that
        event. Before the first event that trains, learning is paused. After a rollback, the learner updates the stable
        version with the groups that it still has, and a version that it publishes is tried.
        """
        while time.monotonic() < deadline:
            settled_us = [one["occurred_at_us"] + 1e6 * _settled_s(one, kind) for one in self._log.done]
            settled_us.append(self._log.learned_us + 1e6 * SETTLED_S)
            testing = self._log.weights.canary is not None or self._log.harness.canary is not None
            stopped = self._log.has_alarm or (kind == "gameable_reward" and self._log.is_paused)
            if not testing and not stopped and now_us() > max(settled_us):
                return
            self._sleep(POLL_S)

    def _measure(self, since_us: int) -> None:
        """Wait for the time of a measurement, and for enough trajectories."""
        longest_s = (LONGEST_MEASURE - 1) * self._pace.measure_s
        self._sleep(self._pace.measure_s)
        self._wait_until(lambda: self._rate_since(since_us).n >= MEASURED, longest_s)

    def _rate_since(self, since_us: int) -> Rate:
        return self._production.success(since_us, now_us())

    def _start_fleet(self) -> None:
        settings = self._settings
        arguments = {
            "url": settings.fleet.gateway_url,
            "model": settings.inference.model,
            "agent": settings.fleet.agent,
            "world": self._happenings.world_file,
            "seed": self._seed,
            "group-size": settings.learner.group_size,
            "concurrency": settings.fleet.concurrency,
        }
        command = [sys.executable, "-m", "stepstream.demo.control.agent"]
        self._began_us = now_us()
        with (settings.paths.data / "logs" / "desk.log").open("wb") as log:
            self._fleet = subprocess.Popen(
                [*command, *(f"--{name}={value}" for name, value in arguments.items())], stdout=log, stderr=log
            )

    def _stop_fleet(self) -> None:
        if self._fleet is None:
            return
        self._fleet.terminate()
        try:
            self._fleet.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._fleet.kill()
            self._fleet.wait()

    def _sleep(self, seconds: float) -> None:
        """Wait, and meanwhile follow the log and check the processes."""
        self._wait_until(lambda: False, seconds)

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._stack.poll()
            self._log.poll()
            self._print_decisions()
            if self._fleet is not None and self._fleet.poll() is not None:
                raise StackError(f"the fleet ended: see {self._settings.paths.data / 'logs' / 'desk.log'}")
            time.sleep(min(POLL_S, max(0.0, left)))

    def _print_decisions(self) -> None:
        """Print the new decisions, without what they answer."""
        for one in self._log.done:
            if one["action"] != "hold" and one["event_id"] not in self._printed:
                self._printed.add(one["event_id"])
                self._view.print_line(f"{one['action']:9} {one['lever'] or '':8} {one['target']:18} {one['reason']}")


def _settled_s(decision: Decision, kind: Kind) -> float:
    """Return the seconds after a decision in which its consequences may come, before an event's end or `quiet`."""
    if decision["action"] == "hold":
        return 0.0
    retrains = (decision["lever"], decision["action"]) == ("weights", "rollback")
    return RETRAINED_S if retrains and kind == "quiet" else SETTLED_S


def summary(result: Result) -> list[str]:
    """Return the order of the events and the answer to each, in words."""
    lines = [f"success {percent(result.before)} -> {percent(result.after)}"]
    verdicts = {verdict.occurrence.kind: verdict for verdict in result.score.verdicts}
    for one in result.occurrences:
        verdict = verdicts.get(one.kind)
        if verdict is None:
            lines.append(f"{NAMES[one.kind]:36} for {(one.ended_us - one.began_us) / 1e6:.0f} s")
        elif verdict.decision is None:
            lines.append(f"{NAMES[one.kind]:36} no right answer")
        else:
            decision = verdict.decision
            lines.append(
                f"{NAMES[one.kind]:36} {decision['action']} {decision['lever']} {decision['target']} "
                f"after {verdict.delay_s:.0f} s"
            )
    return lines
