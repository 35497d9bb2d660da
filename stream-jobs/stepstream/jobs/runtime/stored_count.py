"""Count the entries of an index of a state, and store the number beside them."""

from stepstream.jobs.runtime.state import Changes, PartitionState


class StoredCount:
    """Number of entries of one index of a partition's state. A new fold reads it anew."""

    def __init__(self, state: PartitionState, key: bytes, index: bytes) -> None:
        """Read the number from `key`; if an earlier release has not saved it, count the entries with prefix `index`."""
        stored = state.get(key)
        self._key = key
        self.value = sum(1 for _ in state.scan(index)) if stored is None else int(stored)

    def add(self, difference: int, changes: Changes) -> None:
        """Add a positive or negative number."""
        self.value += difference
        if self.value:
            changes.put(self._key, str(self.value).encode())
        else:
            changes.delete(self._key)
