"""Run a module that kills itself while it executes a file: `python kill_in_file.py FILE LINES FLAG -m MODULE`.

Once the file FLAG exists, the process sends itself SIGKILL before the line number LINES that it executes of FILE.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from killed_lines import trace_lines


def main(file: str, lines: int, flag: Path, module: str) -> None:
    executed = 0

    def count(_line: object) -> None:
        nonlocal executed
        if flag.exists():
            executed += 1
            if executed >= lines:
                os.kill(os.getpid(), signal.SIGKILL)

    with trace_lines((file,), count):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[5])
