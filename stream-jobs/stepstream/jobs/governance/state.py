"""Build the keys of `govern`'s state, in buckets by day so that an old day is deleted at once; find persons in it."""

import hashlib
import struct
import uuid
from functools import lru_cache
from typing import Any, Literal

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.runtime.day_limit import CountedKind
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.catalogue import GOVERNED_FEEDBACK
from stepstream.topics.events import Step, new_feedback

DAY_US = 24 * 3600 * 1_000_000
_DAY_MS = DAY_US // 1000
SEEN, CLEAN, PERSON, USED, MOVED, CALL = b"e", b"p", b"w", b"i", b"m", b"c"
"""Key prefixes: ids of seen events; steps with a clean context; persons that the steps of a trajectory name; indices of
its steps; other indices that its gateways gave them (`step_numbers.py`); calls of which one record came
(`same_call.py`).
"""
COUNTED = {SEEN: CountedKind("event", (CLEAN, USED, MOVED, CALL)), PERSON: CountedKind("person")}
"""Kinds whose number has a limit."""
_CONTENT_FIELDS = ("category", "comment", "demonstration")
_DAY = struct.Struct(">I")
_INDEX = struct.Struct(">i")


class TrajectoryPersons:
    """The persons that the steps of a trajectory name. Feedback there that names nobody belongs to them.

    A name is stored sealed under its person's key, so that an erasure makes it unreadable.
    """

    def __init__(self, days: int) -> None:
        """`days` is the largest age of a step, in days of the log's time."""
        self.days = days

    def add(self, step: Step, record: Record, changes: Changes, out: Outputs) -> bytes | None:
        """Store the person of a step, if its record is the first of the trajectory and day that names one.

        Returns:
            The day under which the person is stored; None: nothing is stored.
        """
        today = day(record.timestamp_ms // _DAY_MS)
        key = PERSON + today + trajectory_digest(step)
        if step["user"] is None or changes.get(key) is not None:
            return None
        # A feedback record, because the codec seals records of topics only.
        carrier = new_feedback(
            event_id=step["event_id"],
            occurred_at_us=step["occurred_at_us"],
            producer="",
            tenant=step["tenant"],
            consent=step["consent"],
            user=step["user"],
            trajectory_id=step["trajectory_id"],
            name="",
            source="",
        )
        changes.put(key, out.seal(GOVERNED_FEEDBACK, carrier))
        return today

    def of(self, feedback: Any, record: Record, changes: Changes, out: Outputs) -> str | Literal[False] | None:
        """Find the person of feedback that has content but names nobody.

        Returns:
            The person; None if unknown or not needed; False if the person was erased.
        """
        if feedback["user"] is not None or all(feedback[name] is None for name in _CONTENT_FIELDS):
            return None
        today, trajectory = record.timestamp_ms // _DAY_MS, trajectory_digest(feedback)
        for number in range(today - self.days, today + 1):
            sealed = changes.get(PERSON + day(number) + trajectory)
            if sealed is not None:
                try:
                    carrier = out.open(GOVERNED_FEEDBACK, sealed)
                except InvalidRecord:
                    continue
                return False if is_erased(carrier) else carrier["user"]
        return None


def seen_key(event: Any) -> bytes:
    """Return the key of an event; the same id from another tenant is another event."""
    tenant = event["tenant"].encode("utf-8", "surrogatepass")
    identity = hashlib.blake2b(uuid.UUID(event["event_id"]).bytes + tenant, digest_size=16).digest()
    return SEEN + day_of(event) + identity


def clean_key(step: Step, index: int, days_back: int) -> bytes:
    """Return the key that marks step `index` of the trajectory, `days_back` days before `step`, as clean."""
    return CLEAN + day_of(step, days_back) + trajectory_digest(step) + _INDEX.pack(index)


@lru_cache(maxsize=64)
def day(number: int) -> bytes:
    """Encode a day since the Unix epoch for a key."""
    return _DAY.pack(max(0, number))


def day_of(event: Any, days_back: int = 0) -> bytes:
    """Encode the day of the event's own time, which is the same in each copy of it."""
    return day(event["occurred_at_us"] // DAY_US - days_back)


def trajectory_digest(event: Any) -> bytes:
    """Return a digest of the identity of an event's trajectory, for a key."""
    # With the tenant: another tenant may use the same trajectory id.
    return _digest_of(f"{event['tenant']}\x00{event['trajectory_id']}")


@lru_cache(maxsize=64)
def _digest_of(identity: str) -> bytes:
    # The keys of one step name its trajectory several times.
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).digest()
