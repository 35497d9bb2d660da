"""End a process with its parent, even if the parent is killed by kill -9. Linux only: elsewhere nothing happens."""

import ctypes
import os
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
