"""Delete entries of a state that have not changed for some days or exceed a number, a part of them in each tick."""

import struct
from collections.abc import Iterable

from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.jobs.runtime.stored_count import StoredCount

SLACK_DAYS = 7
"""Days for which a job keeps a trajectory beyond the retention period of `label`, which counts from the closure."""

_BY_DAY, _DAY_OF, _COUNT = b"x", b"d", b"n"
_DAY = struct.Struct(">I")
_DAY_MS = 24 * 3600 * 1000
_DELETED_PER_TICK = 2_000


class Expiry:
    """Two indexes of one partition: the entries by day of their newest change, and the day of each entry."""

    def __init__(self, state: PartitionState, keep_days: int, most: int) -> None:
        """`keep_days` is counted from the newest change, in log time; beyond `most` entries, the oldest make room."""
        self._state, self._keep_days, self._most, self._swept_day = state, keep_days, most, 0
        self._entries = StoredCount(state, _COUNT, _DAY_OF)

    def touch(self, keys: Iterable[bytes], changed_ms: int, changes: Changes, out: Outputs, kind: str) -> None:
        """Record that the entries of these keys changed at `changed_ms`; `kind` names them in the metrics."""
        day = _DAY.pack(max(0, changed_ms) // _DAY_MS)
        for key in keys:
            before = changes.get(_DAY_OF + key)
            if before is None:
                out.count(metrics.STATE_ADDED.labels(kind))
                self._entries.add(1, changes)
            elif before == day:
                continue
            else:
                changes.delete(_BY_DAY + before + key)
            changes.put(_DAY_OF + key, day)
            changes.put(_BY_DAY + day + key, kind.encode())

    def due(self, now_ms: int) -> bool:
        """Return True if entries may have expired, or if there are too many."""
        return now_ms // _DAY_MS > self._swept_day or self._entries.value > self._most

    def delete_expired(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Delete expired entries, and the oldest beyond the cap; at most `_DELETED_PER_TICK`."""
        day = now_ms // _DAY_MS
        for deleted, (entry, kind) in enumerate(self._state.scan(_BY_DAY)):
            if deleted == _DELETED_PER_TICK:
                return
            is_old = _DAY.unpack_from(entry)[0] < day - self._keep_days
            if not is_old and self._entries.value <= self._most:
                break
            key = entry[_DAY.size :]
            for expired in (_BY_DAY + entry, _DAY_OF + key, key):
                changes.delete(expired)
            self._entries.add(-1, changes)
            out.count(metrics.STATE_REMOVED.labels(kind.decode(), "age" if is_old else "cap"))
        self._swept_day = day
