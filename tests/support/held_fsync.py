"""Run a module whose `os.fsync` waits while a file exists: `python held_fsync.py FILE -m MODULE`.

FILE with the suffix `.held` appears once a call waits: as on a disk that is slow.
"""

import os
import runpy
import sys
import time
from pathlib import Path


def main(file: Path, module: str) -> None:
    fsync = os.fsync

    def held_fsync(handle: int) -> None:
        while file.exists():
            file.with_suffix(".held").touch()
            time.sleep(0.02)
        fsync(handle)

    os.fsync = held_fsync  # type: ignore[assignment]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3])
