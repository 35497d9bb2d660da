"""Run a program that dies with its parent: `python -m stepstream.embedded.child MODULE` or `… -- COMMAND…`.

The process asks the kernel for SIGKILL when its parent dies, even by kill -9. The request survives exec, so it also
covers the broker, which becomes a Java process. Linux only: other systems rely on the supervisor's own stop.
"""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Request SIGKILL at the parent's death; exit if the parent is dead already."""
    parent = os.getppid()
    # Process 1 adopts orphans. In a container it can also be the command that started this one, never supervisord.
    orphan = parent == 1 and "SUPERVISOR_ENABLED" in os.environ
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if orphan or os.getppid() != parent:
        sys.exit("exiting: the process that started this one has ended")


if __name__ == "__main__":
    die_with_parent()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "--":
        os.execv(sys.argv[1], sys.argv[1:])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
