"""Runs a command that must not outlive its parent: `python guard.py COMMAND…`, with a pipe from the parent as input.

The pipe closes when the parent ends, however it ends; then the command and everything that it started is killed.
Run as a file, so that it imports nothing heavy.
"""

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """The command's exit status."""
    os.setpgid(0, 0)

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would be held when the interpreter ends
            pass
        os.killpg(0, signal.SIGKILL)

    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        threading.Thread(target=watch, daemon=True).start()
        status = process.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # what the command left behind
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
