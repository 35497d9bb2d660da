"""What `govern` remembers in a partition's state: the keys, in buckets by day so that an old day is dropped at once."""

import hashlib
import struct
import uuid
from typing import Any, Literal

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import InvalidRecord, Record
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.events import Step, new_feedback

DAY_US = 24 * 3600 * 1_000_000
_DAY_MS = DAY_US // 1000
SEEN, CLEAN, PERSON = b"e", b"p", b"w"
"""Ids of events; steps with a clean context; whom the steps of a trajectory name."""
_SEALED_AS = "governed-feedback"
_SAYING = ("category", "comment", "demonstration")
_DAY = struct.Struct(">I")
_INDEX = struct.Struct(">i")


def day(number: int) -> bytes:
    """A day since the Unix epoch as it stands in keys."""
    return _DAY.pack(max(0, number))


def seen_key(event: Any) -> bytes:
    """Tells an event from every other; what another tenant sends under the same id is another event."""
    whose = event["tenant"].encode("utf-8", "surrogatepass")
    identity = hashlib.blake2b(uuid.UUID(event["event_id"]).bytes + whose, digest_size=16).digest()
    return SEEN + _bucket(event) + identity


def clean_key(step: Step, index: int, days_back: int) -> bytes:
    """Stands for a step of the same trajectory whose whole context is clean."""
    return CLEAN + _bucket(step, days_back) + _trajectory(step) + _INDEX.pack(index)


class Persons:
    """Whom the steps of a trajectory name: what names nobody there is about them too, and sealed under their key.

    A name is kept sealed under that key as well, so that it goes with its person.
    """

    def __init__(self, days: int) -> None:
        """`days` is how many days before, by the log's time, a step may have come."""
        self.days = days

    def note(self, step: Step, record: Record, changes: Changes, out: Outputs) -> None:
        """Remembers the person of a step, where its record is the first of the day that names one."""
        key = PERSON + day(record.timestamp_ms // _DAY_MS) + _trajectory(step)
        if step["user"] is None or changes.get(key) is not None:
            return
        named = new_feedback(
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
        changes.put(key, out.sealed(_SEALED_AS, named))

    def of(self, feedback: Any, record: Record, changes: Changes, out: Outputs) -> str | Literal[False] | None:
        """The person whom feedback that names nobody, and says something, is about.

        Returns:
            None where nobody is known, False where that person was erased.
        """
        if feedback["user"] is not None or all(feedback[name] is None for name in _SAYING):
            return None
        today, trajectory = record.timestamp_ms // _DAY_MS, _trajectory(feedback)
        for number in range(today - self.days, today + 1):
            kept = changes.get(PERSON + day(number) + trajectory)
            if kept is not None:
                try:
                    named = out.opened(_SEALED_AS, kept)
                except InvalidRecord:
                    continue
                return False if is_erased(named) else named["user"]
        return None


def _bucket(event: Any, days_back: int = 0) -> bytes:
    """The day of the event by its own telling: the same for each copy of it."""
    return day(event["occurred_at_us"] // DAY_US - days_back)


def _trajectory(event: Any) -> bytes:
    # With the tenant: somebody else's trajectory of the same name must vouch for nothing.
    whose = f"{event['tenant']}\x00{event['trajectory_id']}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(whose, digest_size=16).digest()
