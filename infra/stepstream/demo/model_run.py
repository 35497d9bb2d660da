"""Let a real model learn online behind vLLM, with an agent that is an ordinary script; then put versions out and back.

1. Fix the track stable to the base model, start the agent and evaluate the base model on held-out tasks, greedily.
   Meanwhile write the bad version's weights, and train from the first attempts. Then follow the newest version.
2. Wait until training success passes `target + margin` and enough versions were swapped in. Stop the agent, fix the
   track stable and check it on other held-out tasks; if it fails, start the agent, follow the newest version again and
   continue.
3. Stop the learner and evaluate again. Meanwhile publish the bad version, random weights of the same shape. Put the
   good version on a share of the traffic, its parent on the rest, and promote it.
4. Promote the bad version, and roll it back. Stop the agent.
5. Restart the worker: the same prompts must give the same tokens. Meanwhile score sampled tokens with the learner's
   code and compare with what vLLM recorded.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from stepstream.config import Settings, environment_of
from stepstream.demo.agent_script import AgentScript
from stepstream.demo.model_checks import greedy_tokens, max_mu_gap, write_bad_version
from stepstream.demo.phase_timer import PhaseTimer
from stepstream.demo.report import Report
from stepstream.demo.run import TargetMissed
from stepstream.demo.run_stats import Rate, RunStats
from stepstream.demo.view import View, percent
from stepstream.embedded.addresses import worker_addresses
from stepstream.embedded.errors import StackError
from stepstream.embedded.stack import Stack
from stepstream.learner.lineage import read_versions
from stepstream.learner.model.checkpoint import cache_folder, folder_of
from stepstream.topics.catalogue import LABELED_TRAJECTORIES
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Checkpoint
from stepstream.topics.ids import now_us
from stepstream.versions.fetch import fetch_whole
from stepstream.versions.layout import weights_folder

_WORKER = "worker-0"
_REFRESH_S = 3.0
_FEW_ATTEMPTS = 8
"""Attempts at once while commands put versions out and back."""
_CHECK_MARGIN = 0.05
"""Margin by which greedy success in the check must exceed the target; one deviation of 50 tasks is 0.05."""


class ModelDemo:
    """One run over a started stack without a fleet."""

    def __init__(self, stack: Stack, view: View, root_version: int) -> None:
        """Prepare the run; `root_version` is the version of its base model."""
        self._stack, self._settings, self._view, self._root = stack, stack.settings, view, root_version
        self._model = stack.settings.learner.model
        self._agent = AgentScript(self._settings)
        self._stats = RunStats(self._settings, now_us(), root_version)
        self._start = self._labels_end()
        self._timer = PhaseTimer(lambda: {os.getpid(): "demo", **{pid: name for name, pid in stack.pids().items()}})

    def run(self) -> Report:
        """Run all steps and return the report; blocks for minutes.

        Raises:
            TargetMissed: the deadline passed first.
            StackError: a process failed, or a command was refused.
        """
        try:
            return self._run(time.monotonic())
        finally:
            self._agent.stop()

    def _run(self, began: float) -> Report:
        with self._phase("base"), ThreadPoolExecutor(1) as pool:
            # Nobody waits for these: they take what the evaluation leaves of the cores.
            bad_folder = pool.submit(self._write_bad_version)
            self._models("promote", f"{self._model}@{self._root}")
            self._agent.start()
            before = self._evaluate("base model")
            self._models("follow", self._model)
        good = self._learn(began)
        self._stack.stop_process("learner")
        with self._phase("evaluate"), ThreadPoolExecutor(1) as pool:
            bad_version = pool.submit(self._publish_bad, bad_folder.result())
            after = self._evaluate(f"version {good}")
        with self._phase("canary"):
            self._canary(good)
        with self._phase("rollback"):
            rolled_back = self._roll_back(bad_version.result(), good)
        self._agent.stop()
        snapshot, swaps = self._stats.snapshot(), self._stats.swaps()
        with self._phase("restart"):
            same_tokens, (gap, compared) = self._restart(good)
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
            "canary": good,
            "canary_trajectories": self._stats.trajectories_on("canary"),
            "rolled_back": rolled_back,
            "same_tokens_after_restart": same_tokens,
            "model": self._model,
            "root_version": self._root,
            "newest_version": snapshot.newest_version,
            "staleness_max": int(snapshot.staleness_max or 0),
            **self._timer.facts(),
            "minutes": round((time.monotonic() - began) / 60, 2),
        }
        self._stats.close()
        return Report(facts, snapshot.by_version, self._settings.demo.target)

    def _learn(self, began: float) -> int:
        """Let the model learn until a version passes a check; return that version, which the track stable serves.

        The agent runs before, and not after. The check has tasks of its own, so that the later evaluation does not
        decide when learning ends.
        """
        needed = min(1.0, self._settings.demo.target + _CHECK_MARGIN)
        tried, last = self._root, "none was checked"
        while True:
            with self._phase("learn"):
                self._wait_for_success(tried, began, last)
                self._agent.stop()
            with self._phase("check"):
                tried = self._served()
                self._models("promote", f"{self._model}@{tried}")
                rate = self._agent.evaluate(self._settings.demo.held_out // 2, first=self._settings.demo.held_out)
            last = f"success of version {tried} in the check: {percent(rate)} of {100 * needed:.0f} %"
            self._view.print_line(last)
            if rate.value is not None and rate.value >= needed:
                return tried
            self._agent.start()
            self._models("follow", self._model)

    def _wait_for_success(self, tried: int, began: float, last: str) -> None:
        """Block until training success is near the target and versions after `tried` are served, enough in all.

        Raises:
            TargetMissed: the deadline passed first; the error gives `last`, the outcome of the last check.
        """
        demo = self._settings.demo
        while True:
            snapshot = self._stats.snapshot()
            elapsed = time.monotonic() - began
            self._view.update(snapshot, elapsed)
            recent, served = snapshot.recent, snapshot.served.get(_WORKER) or tried
            is_good = recent.n >= demo.window and recent.value is not None and recent.value >= demo.target + demo.margin
            if is_good and served > tried and self._stats.swaps() >= demo.swaps:
                return
            if elapsed > demo.deadline_s:
                raise TargetMissed(
                    f"no version has passed the check on held-out tasks after {elapsed:.0f} s and "
                    f"{self._stats.swaps()} swaps ({last}; success in training: {percent(recent)}): see the logs in "
                    f"{self._settings.paths.data / 'logs'}, or raise STEPSTREAM_DEMO_DEADLINE_S"
                )
            self._wait(_REFRESH_S)

    def _evaluate(self, name: str) -> Rate:
        rate = self._agent.evaluate(self._settings.demo.held_out)
        self._view.print_line(f"held-out success of the {name}: {percent(rate)}")
        return rate

    def _canary(self, version: int) -> None:
        """Serve a version to a share of trajectories and its parent to the rest, start the agent, then promote it."""
        self._models("promote", f"{self._model}@{self._checkpoint(version)['parent_version']}")
        self._models("canary", f"{self._model}@{version}", "--share", f"{self._settings.demo.canary_share:g}")
        # Few attempts at once are over soon.
        self._agent.start(_FEW_ATTEMPTS)
        self._wait_until(lambda: self._stats.trajectories_on("canary") > 0, "a trajectory on the canary")
        self._models("promote", f"{self._model}@{version}")

    def _write_bad_version(self) -> Path:
        """Write random weights of the root's shapes; return their folder."""
        folder = self._settings.paths.data / "models" / "bad"
        write_bad_version(weights_folder(folder_of(self._checkpoint(self._root)["uri"])), folder)
        return folder

    def _publish_bad(self, folder: Path) -> int:
        """Publish the bad weights, while nothing follows the newest version; return their version."""
        self._models("publish", str(folder), "--model", self._model)
        return int(self._newest()["version"])

    def _roll_back(self, bad: int, good: int) -> int:
        """Promote the bad version, wait until it answered, and roll back to the version `good`; return the bad one."""
        self._models("promote", f"{self._model}@{bad}")
        self._wait_until(lambda: self._stats.success_of(bad).n > 0, "a trajectory of the bad version")
        self._view.print_line(f"success of the bad version: {percent(self._stats.success_of(bad))}")
        self._models("rollback", self._model)
        self._wait_until(lambda: self._served() == good, f"version {good} on {_WORKER}")
        return bad

    def _restart(self, version: int) -> tuple[bool, tuple[float, int]]:
        """Restart the worker, and meanwhile compare logprobs.

        Returns:
            True if greedy answers to fixed prompts stay the same; see `max_mu_gap` for the others.
        """
        url = worker_addresses(self._settings)[0]
        before = greedy_tokens(url, self._model)
        with ThreadPoolExecutor(1) as pool:
            comparison = pool.submit(self._max_mu_gap, version)
            self._stack.restart(_WORKER)
            return greedy_tokens(url, self._model) == before, comparison.result()

    def _max_mu_gap(self, version: int) -> tuple[float, int]:
        """Score what a version sampled in this run; see `max_mu_gap`."""
        with closing(Codec(self._settings)) as codec:
            versions = read_versions(self._settings.kafka, codec)
        folder = fetch_whole(versions.get(self._model, version), versions.find, cache_folder(self._settings))
        return max_mu_gap(self._settings, folder, version, self._start)

    def _served(self) -> int:
        """Return the version that the worker serves on the track stable."""
        version = self._stats.served(_WORKER)
        return self._root if version is None else version

    def _checkpoint(self, version: int) -> Checkpoint:
        with closing(Codec(self._settings)) as codec:
            return read_versions(self._settings.kafka, codec).get(self._model, version)

    def _labels_end(self) -> dict[tuple[str, int], int]:
        codec = Codec(self._settings)
        with closing(codec), EventConsumer(self._settings.kafka, codec) as consumer:
            ends = consumer.end_offsets(LABELED_TRAJECTORIES)
        return {(LABELED_TRAJECTORIES, partition): offset for partition, offset in ends.items()}

    def _newest(self) -> Checkpoint:
        with closing(Codec(self._settings)) as codec:
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

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Measure the block and print its seconds, also if it raises."""
        try:
            with self._timer.phase(name):
                yield
        finally:
            self._view.print_line(self._timer.line(name))

    def _wait(self, seconds: float) -> None:
        self._stack.poll()
        self._agent.check()
        time.sleep(seconds)


def process_names(settings: Settings) -> list[str]:
    """Return the names of the stack's processes that the run needs: it watches no alarms."""
    from stepstream.embedded.processes import default_names, stack_parts

    return [name for name in default_names(settings, stack_parts(settings)) if name not in ("fleet", "watch")]
