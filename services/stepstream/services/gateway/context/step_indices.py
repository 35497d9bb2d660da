"""Assign the step indices of every trajectory, in a file that all gateway processes of a folder share.

So no two of them assign one index twice, and counting continues after eviction, restart and kill -9 (`slot_file.py`).
"""

import logging
import os
import struct
import uuid
from pathlib import Path

from stepstream.services.gateway.context.slot_file import SlotFile
from stepstream.topics.ids import trajectory_key

log = logging.getLogger(__name__)

COUNT_FILE = "count-1"
"""Name of the count: the folder's own, so that `govern` can tell indices of different folders apart."""
FILE = "next-indices-1"
SLOTS = 1 << 20
"""Number of trajectories: 16 MiB of disk, allocated as it is used."""
_VALUE = struct.Struct("<I")
_LARGEST = 2**31


class StepIndexFile:
    """The next step index of each trajectory. Close it. Without a usable folder it stores nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open the file of `folder`, creating both if missing."""
        self._file = SlotFile(folder, FILE, _VALUE.size, SLOTS)
        self.name = _name_of(folder)
        """Name of the count; all processes of the folder have the same."""

    def next_of(self, tenant: str, trajectory_id: str) -> int | None:
        """Return the index of a trajectory's next step; None: unknown."""
        return _index(self._file.get(trajectory_key(tenant, trajectory_id)))

    def reserve(self, tenant: str, trajectory_id: str, least: int) -> int:
        """Return the index of a new step, at least `least`; no later call gets it."""
        reserved = least

        def advance(value: bytes | None) -> bytes:
            nonlocal reserved
            reserved = max(least, _index(value) or 0)
            return _VALUE.pack(reserved + 1)

        self._file.update(trajectory_key(tenant, trajectory_id), advance)
        return reserved

    def advance(self, tenant: str, trajectory_id: str, following: int) -> None:
        """Let the index of the next step be `following` or more."""
        self._file.update(
            trajectory_key(tenant, trajectory_id), lambda value: _VALUE.pack(max(following, _index(value) or 0))
        )

    def close(self) -> None:
        """Close the file; later writes are ignored."""
        self._file.close()


def _index(value: bytes | None) -> int | None:
    """Return the index in a slot; None for one that a damaged disk made impossible."""
    index = 0 if value is None else int(_VALUE.unpack(value)[0])
    return index if 0 < index < _LARGEST else None


def _name_of(folder: Path | None) -> str:
    """Return the name in a folder's file, writing a new one if there is none; on errors, one for this process."""
    name = str(uuid.uuid4())
    if folder is None:
        return name
    file, new = folder / COUNT_FILE, folder / f"{COUNT_FILE}.{name}"
    try:
        new.write_text(name)
        try:
            os.link(new, file)  # fails if another process was first, whose name then is complete
        except FileExistsError:
            name = file.read_text()
        finally:
            new.unlink()
    except OSError as error:
        log.warning("cannot store the name of the count of step indices: %s", error)
    return name
