"""Follow compacted topics that a job reads completely before it starts, and note when they change."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Self

from stepstream.config import Settings
from stepstream.topics.table import RejectionOf, Table, close_all, wait_all_current

_WAIT_S = 1.0


class FollowedTables:
    """Tables that are followed together. Close them, or use this as a context manager."""

    def __init__(self, settings: Settings, *topics: str, rejection_of: RejectionOf | None = None) -> None:
        """Start to follow; read only after `wait`. `rejection_of` as in `Table`."""
        self._tables = [Table(settings, topic, rejection_of=rejection_of) for topic in topics]
        self._changed = True

    def wait(self, cancelled: Callable[[], bool]) -> bool:
        """Block until every table is complete. Return False if `cancelled` becomes true first."""
        while not wait_all_current(self._tables, _WAIT_S):
            if cancelled():
                return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following."""
        close_all(self._tables)

    def _note_changes_of(self, *tables: Table) -> None:
        """From now on, note each change of these tables for `_take_change`."""
        for table in tables:
            table.on_change(self._note_change)

    def _note_change(self, key: str, record: Any) -> None:
        self._changed = True

    def _take_change(self) -> bool:
        """Return True if a table has changed since the last call; True for the first call."""
        if not self._changed:
            return False
        # Cleared before the caller reads: a change during the reading counts for the next call.
        self._changed = False
        return True


def fingerprint_of(entries: Sequence[Any]) -> int:
    """Return a hash below 2^64 that is the same in every process for the same order; 0 for no entries."""
    digest = hashlib.blake2b(repr(list(entries)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) if entries else 0
