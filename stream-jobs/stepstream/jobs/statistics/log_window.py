"""Cut the log of a partition into windows, so that the sums of past windows need not be kept.

A label, also the revision of one that was counted long ago, is added to the sums of the window in which its record is.
So the sums of a past window never change again: they are deleted, and the total of a cohort is the sum over windows.
Windows depend on the log alone: a rebuilt state has the same ones.

All records before 2027 are in one window, whose keys are those of earlier releases.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.ids import DEFAULT_TENANT

Kind = Literal["cohort", "period"]

_PREFIX: dict[Kind, bytes] = {"cohort": b"c", "period": b"p"}
_WINDOW, _LATER = b"w", b"W"
_SAVED, _BEGIN = struct.Struct(">4Q"), struct.Struct(">Q")
_FIRST_MS, _LENGTH_MS = 1_798_761_600_000, 28 * 24 * 3600 * 1000
MOST_SUMS = 200_000
"""Sums of a window: the next record begins another. Not a setting, nor is the length: a rebuild must find the same."""


@dataclass(slots=True)
class LogWindow:
    """Window of the newest record of a partition."""

    number: int = 0
    """Its number by time; 0: before 2027."""
    begin: int = 0
    """Offset of its first record."""
    counts: dict[Kind, int] = field(default_factory=lambda: {"cohort": 0, "period": 0})
    """Number of its sums."""

    def key(self, kind: Kind, digest: bytes) -> bytes:
        """Return the key of a sum in the state."""
        prefix = _PREFIX[kind]
        return _LATER + _BEGIN.pack(self.begin) + prefix + digest if self.number else prefix + digest

    def identity(self, cohort: Sequence[object], partition: int) -> list[object]:
        """Return the identity of a published sum."""
        identity = partition_identity(cohort, partition)
        return [*identity, self.begin] if self.number else identity

    def count(self, kind: Kind, changes: Changes, out: Outputs) -> None:
        """Count a sum that is new in the state."""
        self.counts[kind] += 1
        out.count(metrics.STATE_ADDED.labels(kind))
        changes.put(_WINDOW, _SAVED.pack(self.number, self.begin, *self.counts.values()))


def saved_fields(cohort: Sequence[object]) -> Sequence[object]:
    """Return the fields of a cohort, whose last one is the tenant, for states and keys: without the default tenant.

    So the keys of the default tenant are those of earlier releases, which summed over all tenants.
    """
    return cohort[:-1] if cohort[-1] == DEFAULT_TENANT else cohort


def partition_identity(cohort: Sequence[object], partition: int) -> list[object]:
    """Return the identity of a cohort in a partition, the same in all windows."""
    return [*saved_fields(cohort), partition]


def window_of(record: Record, changes: Changes, out: Outputs) -> LogWindow:
    """Return the window of a record. If it is the first of a window, delete the sums of those before."""
    window, saved = LogWindow(), changes.get(_WINDOW)
    if saved is not None:
        window.number, window.begin, *counts = _SAVED.unpack(saved)
        window.counts = dict(zip(window.counts, counts, strict=True))
    number = max(window.number, (record.timestamp_ms - _FIRST_MS) // _LENGTH_MS + 1)
    is_full = number > 0 and sum(window.counts.values()) >= MOST_SUMS
    if number == window.number and not is_full:
        return window
    for prefix in _PREFIX.values():
        changes.delete_range(prefix, bytes([prefix[0] + 1]))
    changes.delete_range(_LATER, _LATER + _BEGIN.pack(record.offset))
    for kind, count in window.counts.items():
        out.count(metrics.STATE_REMOVED.labels(kind, "age" if number > window.number else "cap"), count)
    window = LogWindow(number, record.offset)
    changes.put(_WINDOW, _SAVED.pack(window.number, window.begin, 0, 0))
    return window
