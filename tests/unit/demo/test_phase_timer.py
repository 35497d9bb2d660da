"""Test the wall and CPU seconds of phases, with a process that computes."""

import os
import subprocess
import sys

import psutil
import pytest
from waiting import wait_until

from stepstream.demo.phase_timer import PhaseTimer

COMPUTES_ONE_SECOND = "import sys, time\nwhile time.process_time() < 1.2: pass\nprint(flush=True)\nsys.stdin.read()"


def test_a_phase_counts_what_its_processes_compute_by_name() -> None:
    command = [sys.executable, "-c", COMPUTES_ONE_SECOND]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        timer = PhaseTimer(lambda: {os.getpid(): "demo", process.pid: "learner"})
        assert process.stdout is not None
        with timer.phase("learn"):
            process.stdout.read(1)
        with timer.phase("idle"):
            pass
        facts = timer.facts()
        process.communicate()
    assert set(facts["seconds"]) == set(facts["cpu_seconds"]) == {"start", "learn", "idle"}
    assert facts["cpu_seconds"]["learn"]["learner"] == 1
    assert facts["cpu_seconds"]["idle"] == {}
    assert facts["seconds"]["learn"] >= 0.5


def test_a_descendant_counts_under_its_nearest_named_ancestor_and_an_ended_child_under_its_parent() -> None:
    source = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\ninput()"
    once = COMPUTES_ONE_SECOND.replace("sys.stdin.read()", "")
    with subprocess.Popen([sys.executable, "-c", source, once], stdin=subprocess.PIPE) as process:
        timer = PhaseTimer(lambda: {os.getpid(): "demo", process.pid: "worker-0"})
        with timer.phase("evaluate"):
            parent = psutil.Process(process.pid)
            wait_until(lambda: sum(parent.cpu_times()[2:4]) >= 1, "the end of the grandchild")
        facts = timer.facts()
        process.communicate(b"\n")
    assert facts["cpu_seconds"]["evaluate"]["worker-0"] >= 1


def test_a_repeated_phase_adds_up_and_one_that_raises_counts() -> None:
    timer = PhaseTimer(lambda: {os.getpid(): "demo"})
    with timer.phase("check"):
        pass
    with pytest.raises(LookupError), timer.phase("check"):
        raise LookupError
    assert set(timer.facts()["seconds"]) == {"start", "check"}
