"""The sampled search for names of people in governed steps: what is searched, and what follows."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from stepstream.jobs.redaction.fields import texts_of
from stepstream.jobs.redaction.pseudonyms import PSEUDONYM
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.events import new_audit_entry, new_curation
from stepstream.topics.ids import derived_id

NAME = "inspect"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
_HELD = b"h"


class Inspection(Protocol):
    """A tenant's `[inspect]` table."""

    @property
    def share(self) -> float:
        """Share of trajectories that are searched."""
        ...

    @property
    def hold(self) -> bool:
        """Whether a trajectory with a find is kept out of training."""
        ...


class Recogniser(Protocol):
    """Finds names of people."""

    def names(self, texts: Iterable[str]) -> int:
        """How many are in the texts."""
        ...


def sampled(trajectory_id: str, share: float) -> bool:
    """Whether a trajectory is searched: all of it or nothing, and the same each time."""
    drawn = hashlib.blake2b(trajectory_id.encode("utf-8", "surrogatepass"), digest_size=8, person=b"inspect").digest()
    return int.from_bytes(drawn) < share * 2**64


def searched(step: Any) -> list[str]:
    """What of a governed step is searched: its texts, without the pseudonyms in them."""
    messages = [*step["messages"], step["response"]]
    return [PSEUDONYM.sub("", text) for message in messages for text in texts_of(message) if text]


class InspectFold:
    """One partition of governed steps. State: which trajectories were held, so that a release is not undone."""

    def __init__(self, policy: Callable[[str], tuple[int, Inspection]], recogniser: Recogniser) -> None:
        """`policy` gives the version and the `[inspect]` table of a tenant's policy."""
        self._policy, self._recogniser = policy, recogniser

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Searches one step, if it is in the sample, and tells what was found by count."""
        version, inspection = self._policy(event["tenant"])
        trajectory = event["trajectory_id"]
        if not sampled(trajectory, inspection.share):
            return
        found: Counter[str] = Counter()
        if names := self._recogniser.names(searched(event)):
            found["name"] = names
        occurred_at_us = max(0, record.timestamp_ms) * 1000
        entry = new_audit_entry(
            event_id=derived_id(JOB, event["event_id"]),
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
        out.emit("governance-audit", trajectory, entry)
        held = _HELD + trajectory.encode("utf-8", "surrogatepass")
        if found and inspection.hold and changes.get(held) is None:
            changes.put(held, b"")
            hold = new_curation(
                event_id=derived_id(JOB, "hold", trajectory),
                occurred_at_us=occurred_at_us,
                trajectory_id=trajectory,
                action="hold",
                reason="names",
                by=JOB,
            )
            out.emit("curation", trajectory, hold)

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Nothing: each step stands for itself."""

    def due(self, now_ms: int) -> bool:
        """Never."""
        return False

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Nothing."""

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Nothing: results depend on the input alone."""


class SpacyNames:
    """Names by a pipeline of spaCy."""

    LABELS: ClassVar = frozenset({"PERSON", "PER"})

    def __init__(self, pipeline: Any) -> None:
        """`pipeline` sets `doc.ents`."""
        self._pipeline = pipeline

    def names(self, texts: Iterable[str]) -> int:
        """How many entities of people are in the texts."""
        limit = self._pipeline.max_length
        pieces = (text[at : at + limit] for text in texts for at in range(0, len(text), limit))
        return sum(entity.label_ in self.LABELS for doc in self._pipeline.pipe(pieces) for entity in doc.ents)
