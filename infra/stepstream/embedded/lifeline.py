"""supervisord with a lifeline: `python -m stepstream.embedded.lifeline -c FILE`.

Standard input is a pipe that the stack's owner holds. When the owner ends, by kill -9 too, the pipe closes and
supervisord gets a SIGTERM, upon which it stops its processes in order. A pipe rather than the kernel's parent-death
signal, since that one follows the thread that started the child, and an owner may start a stack from any thread.
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
