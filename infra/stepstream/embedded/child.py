"""Run a program that dies with its parent: `python -m stepstream.embedded.child MODULE` or `… -- COMMAND…`.

The process asks the kernel for SIGKILL when its parent dies, even by kill -9. The request survives exec, so it also
covers the broker, which becomes a Java process. Linux only: other systems rely on the supervisor's own stop.
"""

import os
import runpy
import sys

from stepstream.core.parent_death import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "--":
        os.execv(sys.argv[1], sys.argv[1:])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
