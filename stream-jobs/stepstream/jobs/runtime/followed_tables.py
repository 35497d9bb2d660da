"""Compacted topics that a job needs whole before it may begin, and which tell it when to look again."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from stepstream.config import Settings
from stepstream.topics.closing import Closing
from stepstream.topics.table import Refused, Table


class FollowedTables(Closing):
    """Tables that are followed together; close them, or use this as a context manager."""

    def __init__(self, settings: Settings, *topics: str, refused: Refused | None = None) -> None:
        """Begins to follow; ask only after `wait`. `refused` as in `Table`."""
        self._tables = [Table(settings, topic, refused=refused) for topic in topics]
        self._changed = True

    def wait(self, cancelled: Callable[[], bool]) -> bool:
        """Blocks until all that is in the tables is known; False: asked to give up before."""
        return all(table.wait_until_current(cancelled) for table in self._tables)

    def close(self) -> None:
        """Stops following."""
        for table in self._tables:
            table.close()

    def _watch(self, *tables: Table) -> None:
        """From now on `_news` tells of changes of these."""
        for table in tables:
            table.on_change(self._note)

    def _news(self) -> bool:
        """Whether the tables have to be read again; what changes from here on is told the next time."""
        if not self._changed:
            return False
        self._changed = False
        return True

    def _note(self, key: str, record: Any) -> None:
        self._changed = True


def fingerprint_of(known: Sequence[Any]) -> int:
    """Names what is known, below 2^64, where nothing known is 0; the same in every process for the same order."""
    digest = hashlib.blake2b(repr(list(known)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) if known else 0
