"""A process run by `embedded.child` dies with its parent."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from waiting import TIMEOUT_S, wait_until


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal: run on Linux")
def test_a_child_dies_with_its_parent_also_after_exec() -> None:
    parent_program = (
        "import subprocess, sys, time\n"
        "command = [sys.executable, '-m', 'stepstream.embedded.child', '--', '/bin/sleep', '600']\n"
        "print(subprocess.Popen(command).pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = psutil.Process(int(parent.stdout.readline()))
    wait_until(lambda: child.name() == "sleep")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    child.wait(TIMEOUT_S)


def test_a_module_runs_as_the_main_program_with_its_arguments() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stepstream.embedded.child", "platform", "terse"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert "Linux" in done.stdout or sys.platform != "linux"
