"""Exchange objects between the ranks, apart from the training: commands of rank 0, and the writing of versions."""

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from stepstream.core.process import Fatal

_IDLE_TIMEOUT = timedelta(days=3650)
"""How long the other ranks wait for the next object of rank 0, which waits for data to train on."""


class RankGroup:
    """A process group of all ranks, for one thread of each; a process that has joined no ranks is alone in it."""

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None

    def open(self) -> None:
        """Join the group; every rank must call this, in the same order."""
        self._group = dist.new_group(timeout=_IDLE_TIMEOUT, backend="gloo")

    def broadcast(self, value: Any) -> None:
        """Send a picklable object to the other ranks; for rank 0."""
        if self._group is not None:
            dist.broadcast_object_list([value], 0, self._group)

    def receive(self) -> Any:
        """Wait for the next object from rank 0 and return it; for the other ranks.

        Raises:
            Fatal: rank 0 is gone.
        """
        received = [None]
        try:
            dist.broadcast_object_list(received, 0, self._group)
        except RuntimeError as error:
            raise Fatal(f"rank 0 is gone ({str(error).splitlines()[0]})") from None
        return received[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the picklable objects of all ranks, by rank; every rank must call this."""
        if self._group is None:
            return [value]
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, value, self._group)
        return gathered


CONTROL = RankGroup()
"""Carries rank 0's commands to the main threads."""
WRITERS = RankGroup()
"""Connects the threads that write versions."""


def open_groups() -> None:
    """Join all groups; every rank must call this once."""
    CONTROL.open()
    WRITERS.open()
