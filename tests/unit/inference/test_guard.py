"""Test that the guard ends its command and the command's children when its parent dies."""

import subprocess
import sys
from pathlib import Path

from waiting import TIMEOUT_S, wait_until

import stepstream.services.inference.guard as guard

# A command with a child of its own; it prints both ids, then both would run forever.
COMMAND = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
PARENT = """
import subprocess, sys, time
process = subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE)
time.sleep(600)
"""


def runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(runs, pids)))


def test_the_command_and_its_children_end_with_a_killed_parent() -> None:
    command = [sys.executable, "-S", "-c", COMMAND]
    with subprocess.Popen(
        [sys.executable, "-S", "-c", PARENT, str(guard.__file__), *command], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(runs, pids))
        parent.kill()
        until_gone(pids)


def test_the_command_s_status_is_the_guard_s() -> None:
    command = [sys.executable, str(guard.__file__), sys.executable, "-S", "-c", "raise SystemExit(7)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.wait(TIMEOUT_S) == 7
