"""Run the demo on the embedded stack, asynchronously or synchronously; measure the time to its target."""

import logging
import os
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from stepstream.config import Settings, load, settings_file
from stepstream.demo.configuration import fresh_run
from stepstream.demo.memory import MemoryWatch
from stepstream.demo.run import Demo, TargetMissed
from stepstream.demo.view import open_view
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.connection import connect
from stepstream.learner.lineage import read_versions
from stepstream.topics.codec import Codec

AHEAD = {"asynchronous": 1, "synchronous": 0}
"""Versions that agents may be ahead. 0 is synchronous: agents wait from a batch's last attempt to the next version."""
READER = "reader"


def settings_of(mode: str, seed: int, data: Path) -> Settings:
    """Return the demo's settings with this shell's variables, free ports and this seed."""
    chosen = {
        "STEPSTREAM_FLEET_MAX_AHEAD": str(AHEAD[mode]),
        "STEPSTREAM_FLEET_SEED": str(seed + 1),
        "STEPSTREAM_LEARNER_SEED": str(seed),
    }
    return isolated(fresh_run(load({**os.environ, **chosen}, settings_file("demo"))), data)


def run_demo(mode: str, seed: int, data: Path) -> dict[str, Any]:
    """Run the demo once; about a minute and a half on two idle cores, with the stack."""
    logging.disable(logging.INFO)
    settings = settings_of(mode, seed, data)
    settings = settings.model_copy(
        update={"fleet": settings.fleet.model_copy(update={"ledger": data / "demo" / f"ledger-{time.time_ns()}.jsonl"})}
    )
    with Stack(settings, deferred=["fleet"]) as stack:
        with closing(Codec(stack.settings)) as codec:
            root = read_versions(stack.settings.kafka, codec).newest(settings.learner.model)
        assert root is not None
        demo = _MeasuredDemo(stack, root["version"])
        memory = MemoryWatch(stack.members)
        try:
            facts = demo.run(memory).facts
        except TargetMissed as error:
            return {"seconds": None, "error": str(error), **demo.learner()}
        finally:
            memory.stop()
        return {
            "seconds": facts["seconds_to_target"],
            "versions": facts["policy_versions"],
            "success": facts["success_after"],
            "staleness_max": facts["staleness_max"],
            "lost": facts["lost"],
            "duplicated": facts["duplicated"],
            **_tables(stack.settings, demo.since_us),
            "cpu_s": demo.cpu_s,
            **demo.learner(),
        }


class _MeasuredDemo(Demo):
    """The demo with CPU seconds of every process, and the learner's seconds, from fleet start to target."""

    def __init__(self, stack: Stack, root: int) -> None:
        super().__init__(stack, open_view(stack.settings.demo.target, stack.settings.demo.deadline_s), root)
        self._measured = stack
        self.since_us = 0
        self.cpu_s: dict[str, float] = {}
        self.learner_s: dict[str, float] = {}

    def _learn(self, began: float) -> Any:
        self.since_us = time.time_ns() // 1000
        before, learner = cpu_seconds(self._measured), learner_seconds(self._measured)
        try:
            return super()._learn(began)
        finally:
            self.cpu_s = _difference(cpu_seconds(self._measured), before)
            self.learner_s = _difference(learner_seconds(self._measured), learner)

    def learner(self) -> dict[str, Any]:
        """Return the learner's seconds by activity, and its reader thread's CPU seconds."""
        activities = {activity: seconds for activity, seconds in self.learner_s.items() if activity != READER}
        return {"learner_s": activities, "reader_cpu_s": self.learner_s[READER]}


def _difference(now: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: round(seconds - before.get(name, 0.0), 2) for name, seconds in now.items()}


def learner_seconds(stack: Stack) -> dict[str, float]:
    """Return the learner's seconds by activity, and its reader thread's CPU seconds as `READER`."""
    (learner,) = (process for process in stack.processes if process.name == "learner")
    with urllib.request.urlopen(learner.ready.address, timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
    seconds = {}
    for sample in (sample for family in families for sample in family.samples):
        if sample.name == "stepstream_learner_seconds_total":
            seconds[sample.labels["activity"]] = sample.value
        elif sample.name == "stepstream_learner_reader_cpu_seconds_total":
            seconds[READER] = sample.value
    return seconds


def cpu_seconds(stack: Stack) -> dict[str, float]:
    """Return the CPU seconds of each process with its children."""
    seconds = {}
    for process in stack.processes:
        pid = stack.pid(process.name)
        if pid:
            seconds[process.name] = sum(map(_seconds, [psutil.Process(pid), *psutil.Process(pid).children(True)]))
    return seconds


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _tables(settings: Settings, since_us: int) -> dict[str, int]:
    """Return the steps and trajectories since `since_us`."""
    with closing(connect(settings, database=settings.clickhouse.database, reads_only=True)) as client:
        steps, trajectories = client.query(
            "SELECT sum(steps), count() FROM trajectories FINAL"
            " WHERE started_at >= fromUnixTimestamp64Micro({since:Int64})",
            {"since": since_us},
        ).result_rows[0]
    return {"steps": int(steps), "trajectories": int(trajectories)}
