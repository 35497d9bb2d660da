"""Run supervisord until its owner ends: `python -m stepstream.embedded.lifeline -c FILE`.

Standard input is a pipe that the stack's owner holds. When the owner ends, even by kill -9, the pipe closes. This
process then sends itself SIGTERM, and supervisord stops its processes in order. The kernel's parent-death signal does
not serve here: it follows the thread that started the child, and an owner may start a stack from any thread.
"""

import os
import signal
import sys
import threading


def _stop_when_owner_ends() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    from supervisor.supervisord import main

    threading.Thread(target=_stop_when_owner_ends, daemon=True).start()
    main()
