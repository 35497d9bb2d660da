"""Record the changes of consents and erasures, and hash all of them, at a cost that does not grow with their number."""

import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Any

from stepstream.jobs.governance.consent import parse_consent_key
from stepstream.jobs.governance.trajectory_policy import DecisionChange
from stepstream.topics.catalogue import ERASURES

_KEPT = 100_000
"""Changes that are remembered; a reader that is further behind reviews everything."""


class DecisionLog:
    """Changes of two tables. `note` is for the tables' threads; use all else from one thread."""

    def __init__(self) -> None:
        self.fingerprint = 0
        """Hash of all decisions, the same in every process; 0: none."""
        self.is_loaded = False
        self._noted: deque[tuple[str, str, Any]] = deque()
        self._hashes: dict[tuple[str, str], int] = {}
        self._changes: deque[DecisionChange] = deque()
        self._end = 0

    def note(self, topic: str, key: str, record: Any) -> None:
        """Note a change; None: the key was deleted."""
        self._noted.append((topic, key, record))

    def load(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Take in the present rows of the tables, by topic, which are no changes."""
        self.is_loaded = True
        for topic, rows in tables.items():
            for key, record in rows.items():
                self._set(topic, key, record)

    def read(self) -> None:
        """Take in the noted changes. Those that were loaded before change nothing."""
        while self._noted:
            topic, key, record = self._noted.popleft()
            if self._set(topic, key, record):
                self._end += 1
                self._changes.append(_change(topic, key, record))
                if len(self._changes) > _KEPT:
                    self._changes.popleft()

    def since(self, cursor: int | None) -> tuple[int, list[DecisionChange] | None]:
        """Return the present cursor, and the changes since an earlier one; None: they are not known any more."""
        if cursor is None or self._end - cursor > len(self._changes):
            return self._end, None
        first = len(self._changes) - (self._end - cursor)
        return self._end, [self._changes[place] for place in range(first, len(self._changes))]

    def _set(self, topic: str, key: str, record: Any) -> bool:
        """Set a row; return False if it had the same event."""
        now = 0 if record is None else _hash(topic, key, record["event_id"])
        before = self._hashes.pop((topic, key), 0)
        if now:
            self._hashes[topic, key] = now
        self.fingerprint ^= before ^ now
        return before != now


def _change(topic: str, key: str, record: Any) -> DecisionChange:
    if topic == ERASURES:
        return DecisionChange(None) if record is None else DecisionChange(record["tenant"], subject=key)
    parsed = parse_consent_key(key)
    return DecisionChange(None) if parsed is None else DecisionChange(parsed[0], parsed[1])


def _hash(*parts: str) -> int:
    return int.from_bytes(hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest())
