"""Let a real model learn online behind vLLM, with an agent that is an ordinary script; then put versions out and back.

1. Evaluate the base model on held-out tasks, greedily.
2. Start the agent and wait until training success passes the target and enough versions were swapped in.
3. Stop the learner. Fix the track stable, put the newest version on a share of the traffic, and promote it.
4. Publish and promote a bad version, random weights of the same shape, and roll it back.
5. Stop the agent; evaluate the held-out tasks again.
6. Restart the worker: the same prompts must give the same tokens.
7. Score sampled tokens with the learner's code and compare with what vLLM recorded.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing

from stepstream.config import Settings, environment_of
from stepstream.demo.agent_script import AgentScript
from stepstream.demo.model_checks import greedy_tokens, max_mu_gap, write_bad_version
from stepstream.demo.report import Report
from stepstream.demo.run import REFRESH_INTERVAL_S, TargetMissed
from stepstream.demo.run_stats import Rate, RunStats
from stepstream.demo.view import View, percent
from stepstream.embedded.addresses import worker_addresses
from stepstream.embedded.errors import StackError
from stepstream.embedded.stack import Stack
from stepstream.learner.lineage import read_versions
from stepstream.learner.model.checkpoint import folder_of
from stepstream.topics.catalogue import LABELED_TRAJECTORIES
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Checkpoint
from stepstream.topics.ids import now_us
from stepstream.versions.layout import weights_folder

_STABLE, CANARY = "worker-0", "worker-1"


class ModelDemo:
    """One run over a started stack without a fleet."""

    def __init__(self, stack: Stack, view: View, root_version: int) -> None:
        """Prepare the run; `root_version` is the version of its base model."""
        self._stack, self._settings, self._view, self._root = stack, stack.settings, view, root_version
        self._model = stack.settings.learner.model
        self._agent = AgentScript(self._settings)
        self._stats = RunStats(self._settings, now_us(), root_version)
        self._start = self._labels_end()

    def run(self) -> Report:
        """Run all steps and return the report; blocks for minutes.

        Raises:
            TargetMissed: the deadline passed first.
            StackError: a process failed, or a command was refused.
        """
        began = time.monotonic()
        before = self._evaluate("base model")
        self._agent.start()
        try:
            self._learn(began)
            swaps = self._stats.swaps()
            self._stack.stop_process("learner")
            canary = self._canary()
            rolled_back = self._bad_version(canary)
        finally:
            self._agent.stop()
        snapshot = self._stats.snapshot()
        after = self._evaluate(f"version {canary}")
        same_tokens = self._restart()
        gap, compared = max_mu_gap(self._settings, self._checkpoint(canary), self._start)
        prefix, continued = self._stats.prefix_kept()
        facts = {
            **before.facts("success_before"),
            **after.facts("success_after"),
            "swaps": swaps,
            "failed_requests": self._stats.failed_requests(),
            "prefix_kept": round(prefix, 4),
            "continued_steps": continued,
            "max_mu_gap": gap,
            "mu_tokens": compared,
            "canary": canary,
            "canary_trajectories": self._stats.trajectories_on("canary"),
            "rolled_back": rolled_back,
            "same_tokens_after_restart": same_tokens,
            "model": self._model,
            "root_version": self._root,
            "newest_version": snapshot.newest_version,
            "staleness_max": int(snapshot.staleness_max or 0),
            "minutes": round((time.monotonic() - began) / 60, 2),
        }
        self._stats.close()
        return Report(facts, snapshot.by_version, self._settings.demo.target)

    def _evaluate(self, name: str) -> Rate:
        rate = self._agent.evaluate(self._settings.demo.held_out)
        self._view.print_line(f"held-out success of the {name}: {percent(rate)}")
        return rate

    def _learn(self, began: float) -> None:
        """Block until training success passes the target and enough versions were swapped in."""
        demo = self._settings.demo
        while True:
            snapshot = self._stats.snapshot()
            elapsed = time.monotonic() - began
            self._view.update(snapshot, elapsed)
            recent = snapshot.recent
            is_good = recent.n >= demo.window and recent.value is not None and recent.value >= demo.target + demo.margin
            if is_good and self._stats.swaps() >= demo.swaps:
                return
            if elapsed > demo.deadline_s:
                raise TargetMissed(
                    f"success is {percent(recent)} after {elapsed:.0f} s and {self._stats.swaps()} swaps, below the "
                    f"target of {100 * demo.target:.0f} %: see the logs in {self._settings.paths.data / 'logs'}, or "
                    "raise STEPSTREAM_DEMO_DEADLINE_S"
                )
            self._wait(REFRESH_INTERVAL_S)

    def _canary(self) -> int:
        """Serve the newest version to a share of trajectories, wait for one, promote the version and return it."""
        newest = self._newest()
        version = newest["version"]
        self._models("promote", f"{self._model}@{newest['parent_version']}")
        self._models("canary", f"{self._model}@{version}", "--share", f"{self._settings.demo.canary_share:g}")
        self._stack.start_process(CANARY)
        self._wait_until(lambda: self._stats.trajectories_on("canary") > 0, "a trajectory on the canary")
        self._models("promote", f"{self._model}@{version}")
        self._stack.stop_process(CANARY)
        return int(version)

    def _bad_version(self, good: int) -> int:
        """Publish and promote random weights, wait until they answered, and roll back to the version `good`."""
        folder = self._settings.paths.data / "models" / "bad"
        write_bad_version(weights_folder(folder_of(self._checkpoint(self._root)["uri"])), folder)
        self._models("publish", str(folder), "--model", self._model)
        bad = self._newest()["version"]
        self._models("promote", f"{self._model}@{bad}")
        self._wait_until(lambda: self._stats.success_of(bad).n > 0, "a trajectory of the bad version")
        self._view.print_line(f"success of the bad version: {percent(self._stats.success_of(bad))}")
        self._models("rollback", self._model)
        self._wait_until(lambda: self._stats.served(_STABLE) == good, f"version {good} on {_STABLE}")
        return int(bad)

    def _restart(self) -> bool:
        """Restart the worker; return True if greedy answers to fixed prompts stay the same."""
        url = worker_addresses(self._settings)[0]
        before = greedy_tokens(url, self._model)
        self._stack.restart(_STABLE)
        return greedy_tokens(url, self._model) == before

    def _checkpoint(self, version: int) -> Checkpoint:
        with closing(Codec(self._settings.schema_registry)) as codec:
            return read_versions(self._settings.kafka, codec).get(self._model, version)

    def _labels_end(self) -> dict[tuple[str, int], int]:
        codec = Codec(self._settings.schema_registry)
        with closing(codec), EventConsumer(self._settings.kafka, codec) as consumer:
            ends = consumer.end_offsets(LABELED_TRAJECTORIES)
        return {(LABELED_TRAJECTORIES, partition): offset for partition, offset in ends.items()}

    def _newest(self) -> Checkpoint:
        with closing(Codec(self._settings.schema_registry)) as codec:
            newest = read_versions(self._settings.kafka, codec).newest(self._model)
        assert newest is not None
        return newest

    def _models(self, *words: str) -> None:
        """Run `stepstream models WORDS`, as a person would.

        Raises:
            StackError: the command failed.
        """
        self._view.print_line(f"stepstream models {' '.join(words)}")
        command = [sys.executable, "-m", "stepstream.cli.main", "models", *words]
        environment = {**os.environ, **environment_of(self._settings)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StackError(f"stepstream models {words[0]}: {(done.stderr or done.stdout).strip()}")

    def _wait_until(self, condition: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + self._settings.demo.drain_s
        while not condition():
            if time.monotonic() > deadline:
                raise StackError(
                    f"no {name.removeprefix('a ')} within {self._settings.demo.drain_s:g} s: see the logs in "
                    f"{self._settings.paths.data / 'logs'}, or raise STEPSTREAM_DEMO_DRAIN_S"
                )
            self._wait(0.5)

    def _wait(self, seconds: float) -> None:
        self._stack.poll()
        self._agent.check()
        time.sleep(seconds)


def without_fleet(settings: Settings) -> list[str]:
    """Return the names of the stack's processes that the run needs."""
    from stepstream.embedded.processes import Process, stack_parts

    names = [part.name for part in stack_parts(settings) if isinstance(part, Process)]
    return [name for name in names if name not in ("fleet", "watch")]
