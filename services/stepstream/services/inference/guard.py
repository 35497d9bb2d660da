"""Run a command that must not outlive its parent: `python guard.py COMMAND…`, with a pipe from the parent as input.

The pipe closes when the parent ends, also by a kill. Then the guard kills the command and all its children. It
runs as a file, so that it imports nothing heavy.
"""

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """Run the command in a new process group and return its exit status."""
    os.setpgid(0, 0)

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin: this thread would hold its lock at the interpreter's exit
            pass
        os.killpg(0, signal.SIGKILL)

    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        threading.Thread(target=watch, daemon=True).start()
        status = process.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # end the command's leftover children
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
