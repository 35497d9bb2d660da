"""Search the sampled governed steps for names of people, report their number, and hold their trajectories."""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from stepstream.jobs.governance.name_recogniser import Recogniser
from stepstream.jobs.redaction.fields import texts_of
from stepstream.jobs.redaction.pseudonyms import PSEUDONYM
from stepstream.jobs.runtime.expiry import Expiry
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.catalogue import CURATION, GOVERNANCE_AUDIT
from stepstream.topics.events import new_audit_entry, new_curation
from stepstream.topics.ids import DEFAULT_TENANT, derived_id, trajectory_name

NAME = "inspect"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
_HELD, _HELD_BY_ID = b"t", b"h"
_KIND = "trajectory"


class Inspection(Protocol):
    """The `[inspect]` table of a tenant's policy."""

    @property
    def share(self) -> float:
        """Share of trajectories that are searched, from 0 to 1."""
        ...

    @property
    def hold(self) -> bool:
        """True if a trajectory with a name is kept out of training."""
        ...


class InspectFold:
    """One partition of governed steps. State: the trajectories already held, so that a release stays in force."""

    def __init__(self, policy: Callable[[str], tuple[int, Inspection]], recogniser: Recogniser, held: Expiry) -> None:
        """Create the fold.

        Args:
            policy: returns the version and the `[inspect]` table of a tenant's policy.
            recogniser: counts names.
            held: deletes held trajectories without a step for longer than `label` keeps them.
        """
        self._policy, self._recogniser, self._held = policy, recogniser, held

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Search one step if its trajectory is sampled; emit the number of names, and a hold."""
        version, inspection = self._policy(event["tenant"])
        trajectory = event["trajectory_id"]
        if not is_sampled(trajectory, inspection.share):
            return
        found: Counter[str] = Counter()
        if names := self._recogniser.count_names(searched_texts(event)):
            found["name"] = names
        occurred_at_us = max(0, record.timestamp_ms) * 1000
        entry = new_audit_entry(
            event_id=derived_id(JOB, event["event_id"], tenant=event["tenant"]),
            occurred_at_us=occurred_at_us,
            trajectory_id=trajectory,
            source_topic=record.topic,
            source_event_id=event["event_id"],
            tenant=event["tenant"],
            policy_version=version,
            action="inspected",
            found=dict(found),
            job=JOB,
        )
        out.emit(GOVERNANCE_AUDIT, trajectory, entry)
        held_key = _HELD + trajectory_name(event["tenant"], trajectory)
        if _is_held(held_key, event, changes):
            self._held.touch([held_key], record.timestamp_ms, changes, out, _KIND)
        elif found and inspection.hold:
            changes.put(held_key, b"")
            self._held.touch([held_key], record.timestamp_ms, changes, out, _KIND)
            hold = new_curation(
                event_id=derived_id(JOB, "hold", trajectory, tenant=event["tenant"]),
                occurred_at_us=occurred_at_us,
                trajectory_id=trajectory,
                action="hold",
                reason="names",
                by=JOB,
                tenant=event["tenant"],
            )
            out.emit(CURATION, trajectory, hold)

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Do nothing: each step is independent of its batch."""

    def due(self, now_ms: int) -> bool:
        """Return True if held trajectories may have expired, or if there are too many."""
        return self._held.due(now_ms)

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Delete expired trajectories."""
        self._held.delete_expired(now_ms, changes, out)

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Do nothing: results depend on the input alone."""


def _is_held(key: bytes, event: Any, changes: Changes) -> bool:
    """Return True if a trajectory was held. Earlier releases saved that by the id: it is the default tenant's."""
    by_id = _HELD_BY_ID + event["trajectory_id"].encode("utf-8", "surrogatepass")
    return changes.get(key) is not None or (event["tenant"] == DEFAULT_TENANT and changes.get(by_id) is not None)


def is_sampled(trajectory_id: str, share: float) -> bool:
    """Return True if a trajectory is in the sample: all its steps, and the same answer each time."""
    digest = hashlib.blake2b(trajectory_id.encode("utf-8", "surrogatepass"), digest_size=8, person=b"inspect").digest()
    return int.from_bytes(digest) < share * 2**64


def searched_texts(step: Any) -> list[str]:
    """Return all texts of a governed step, without the pseudonyms in them."""
    messages = [*step["messages"], step["response"]]
    return [PSEUDONYM.sub("", text) for message in messages for text in texts_of(message) if text]
