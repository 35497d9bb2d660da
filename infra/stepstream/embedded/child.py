"""Runs a module as a program that cannot outlive the supervisor: `python -m stepstream.embedded.child MODULE`.

The kernel is asked to kill this process when its parent dies, kill -9 included. The wish survives exec, so it
holds for the broker, which becomes a Java process, too. Linux only; elsewhere the supervisor's own stop must do.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Asks for SIGKILL at the parent's death; exits if it was quicker."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        sys.exit("the supervisor is gone")


if __name__ == "__main__":
    die_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
