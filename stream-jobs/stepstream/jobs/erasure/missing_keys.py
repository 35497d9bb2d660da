"""Find keys that sealed records name and `subject-keys` lacks, and declare them destroyed by a person's decision.

A missing key never counts as destroyed by itself: the records wait for it. This decision ends the waiting, after the
loss of the topic, or for keys that a release before positive records of destruction deleted.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from stepstream.config import Settings
from stepstream.crypto.sealing import key_ids
from stepstream.jobs.erasure import delete_from_log
from stepstream.jobs.erasure.erase import CannotErase
from stepstream.jobs.erasure.read_log import INDEXED, read_events
from stepstream.jobs.erasure.search_progress import Say
from stepstream.topics.catalogue import SUBJECT_KEYS
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_subject_key
from stepstream.topics.ids import new_event_id
from stepstream.topics.table import Table

_TABLE_S = 30.0
_NO_KEY = "erased"


@dataclass
class MissingKey:
    """A key that records name and the topic lacks."""

    tenant: str
    records: Counter[str] = field(default_factory=Counter)
    """Number of records by topic."""


def find_missing_keys(settings: Settings, say: Say) -> dict[str, MissingKey]:
    """Read the sealed topics to their present end; return the missing keys by id.

    Raises:
        CannotErase: `subject-keys` cannot be read to its end.
    """
    missing: dict[str, MissingKey] = {}
    codec = Codec(settings, keep_arrays=True)
    try:
        for topic in INDEXED:
            for event in read_events(settings, codec, topic):
                for key_id in key_ids(event.record["seal_key"]) if event.record else ():
                    found = missing.setdefault(key_id, MissingKey(event.record["tenant"]))
                    found.records[topic] += 1
    finally:
        codec.close()
    missing.pop(_NO_KEY, None)
    # After the records: a key reaches its topic before any record that it sealed.
    with Table(settings, SUBJECT_KEYS) as keys:
        if not keys.wait_current(_TABLE_S):
            raise CannotErase(f"cannot read {SUBJECT_KEYS} within {_TABLE_S:g} s: are Kafka and the registry up?")
        known = keys.items()
    missing = {key_id: found for key_id, found in missing.items() if key_id not in known}
    say(f"{len(missing)} keys are missing")
    return missing


def declare_destroyed(settings: Settings, missing: Mapping[str, MissingKey], requested_by: str) -> None:
    """Write an erasure and a record of destruction for each key: what they sealed is erased from now on."""
    for key_id, found in missing.items():
        subject = f"missing-key-{key_id}"
        erasure = delete_from_log.write_decision(settings, found.tenant, subject, requested_by)
        key = new_subject_key(
            event_id=new_event_id(),
            occurred_at_us=erasure["occurred_at_us"],
            key_id=key_id,
            tenant=found.tenant,
            subject=subject,
            wrapped_key=b"",
        )
        delete_from_log.destroy_keys(settings, [key])
