"""Runs a program that cannot outlive whoever started it: `python -m stepstream.embedded.child MODULE`.

The kernel is asked to kill this process when its parent dies, kill -9 included. The wish survives exec, so it
holds for the broker, which becomes a Java process, too; `child -- COMMAND…` becomes any command in the same way.
Linux only; elsewhere the supervisor's own stop must do.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Asks for SIGKILL at the parent's death; exits if that was quicker."""
    parent = os.getppid()
    # Process 1 adopts orphans; in a container it may also be the command itself, but never supervisord.
    orphan = parent == 1 and "SUPERVISOR_ENABLED" in os.environ
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if orphan or os.getppid() != parent:
        sys.exit("whoever started this process is gone")


if __name__ == "__main__":
    die_with_parent()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "--":
        os.execv(sys.argv[1], sys.argv[1:])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
