"""Find the trajectory whose recorded response a call repeats, also one that another gateway process recorded.

The newest trajectory with each conversation is in a file that all gateway processes of a folder share. It has digests
and ids, and no content.
"""

import struct
import uuid
from pathlib import Path

from stepstream.services.gateway.context.slot_file import SlotFile
from stepstream.services.gateway.context.tree import CallerScope, PrefixHash

FILE = "endings-1"
SLOTS = 1 << 20
"""Number of recorded responses: 32 MiB of disk, allocated as it is used."""
_VALUE = struct.Struct("<16sI")
_DASHES, _PLAIN = 0, 1


class EndingFile:
    """Trajectories by the conversation that they ended with. Close it. Without a usable folder it stores nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        """Open the file of `folder`, creating both if missing."""
        self._file = SlotFile(folder, FILE, _VALUE.size, SLOTS)

    def get(self, scope: CallerScope, end_hash: PrefixHash) -> str | None:
        """Return the newest trajectory with this conversation; None: unknown."""
        value = self._file.get(_key(scope, end_hash))
        if value is None:
            return None
        number, form = _VALUE.unpack(value)
        identity = uuid.UUID(bytes=number)
        return identity.hex if form == _PLAIN else str(identity)

    def put(self, scope: CallerScope, end_hash: PrefixHash, trajectory_id: str) -> None:
        """Record that a trajectory has this conversation. Its id must be a UUID, with or without dashes."""
        try:
            number = uuid.UUID(trajectory_id).bytes
        except ValueError:
            return
        value = _VALUE.pack(number, _DASHES if "-" in trajectory_id else _PLAIN)
        self._file.put(_key(scope, end_hash), value)

    def close(self) -> None:
        """Close the file; later writes are ignored."""
        self._file.close()


def _key(scope: CallerScope, end_hash: PrefixHash) -> bytes:
    return end_hash + "\0".join(scope).encode("utf-8", "surrogatepass")
