"""The fold of the `govern` job."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance import JOB
from stepstream.jobs.governance.active_policy import ActivePolicy
from stepstream.jobs.governance.govern_step import govern_feedback, govern_step
from stepstream.jobs.governance.state import CLEAN, DAY_US, PERSON, SEEN, Persons, clean_key, day, seen_key
from stepstream.jobs.governance.validation import check_envelope, check_feedback, check_step
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.events import Consent, Feedback, Step, new_audit_entry
from stepstream.topics.ids import derived_id
from stepstream.topics.step_contexts import shared_step

log = logging.getLogger(__name__)


class PolicySource(Protocol):
    """Where a fold asks how to govern; `Rulings` is one."""

    def of(self, tenant: str) -> ActivePolicy:
        """How a tenant's records are governed."""
        ...

    def consent(self, ruling: ActivePolicy, event: Any) -> Consent:
        """What may be done with an event."""
        ...


class GovernFold:
    """One partition of steps and feedback.

    State: ids of the events seen, which steps have a clean context (a step may keep the digest of its shared prefix
    only after one), and whom the steps of a trajectory name.
    """

    def __init__(
        self,
        rulings: PolicySource,
        *,
        dedup_days: int,
        max_future_s: float,
        now_us: Callable[[], int],
        context_days: int | None = None,
        erased: Callable[[str, str, int], bool] = lambda tenant, user, occurred_us: False,
        persons: Persons | None = None,
    ) -> None:
        """Makes the fold of a partition.

        Args:
            rulings: how to govern.
            dedup_days: days for which state is kept.
            max_future_s: how far ahead of `now_us` an event may be, in seconds.
            now_us: the time, in microseconds since the Unix epoch.
            context_days: how many days back a step's context is looked for; None: as far as state is kept.
            erased: whether a tenant's person was erased after a time, in microseconds since the Unix epoch.
            persons: tells whom feedback is about that names nobody; None: it stays nobody's.
        """
        self._erased, self._persons = erased, persons
        self._rulings = rulings
        self._dedup_days = dedup_days
        self._context_days = dedup_days if context_days is None else context_days
        self._max_future_us = int(max_future_s * 1e6)
        self._now_us = now_us
        self._newest_day = 0

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Checks, deduplicates, redacts and passes on one event."""
        if is_erased(event):
            self._withhold(record, event, "erased", 0, out)
            return
        check_envelope(event, record.key, self._now_us(), self._max_future_us)
        is_step = record.topic == "steps"
        if is_step:
            check_step(event)
        else:
            check_feedback(event)
        person = None if is_step or self._persons is None else self._persons.of(event, record, changes, out)
        if person:
            event = event | {"user": person}
        user = event["user"]
        if person is False or (user is not None and self._erased(event["tenant"], user, event["occurred_at_us"])):
            log.error(
                "%s[%d]@%d came after the erasure of its person, and may be in the clear: run `stepstream erase` for "
                "them again",
                record.topic,
                record.partition,
                record.offset,
            )
            out.count(metrics.LATE_ERASED.labels(record.topic))
            self._withhold(record, event, "erased:late", 0, out)
            return
        seen = seen_key(event)
        if changes.get(seen) is not None:
            out.count(metrics.DUPLICATES.labels(record.topic))
            self._audit(record, event, "duplicate", {"event_id": 1}, 0, out, record.partition, record.offset)
            return
        if is_step and self._persons is not None:
            self._persons.note(cast(Step, event), record, changes, out)
        ruling = self._rulings.of(event["tenant"])
        consent = self._rulings.consent(ruling, event)
        if consent != event["consent"]:
            event = event | {"consent": consent}
        if consent == "none":
            self._withhold(record, event, "consent:none", ruling.version, out)
        else:
            governed: Step | Feedback
            if is_step:
                governed = self._step(cast(Step, event), ruling, changes, out)
            else:
                governed = self._feedback(cast(Feedback, event), ruling, out)
            self._account(record, event, governed, out)
        # Last, so that an event whose result was refused is not taken for a duplicate when it is sent again.
        changes.put(seen, b"")
        self._newest_day = max(self._newest_day, event["occurred_at_us"] // DAY_US)

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Nothing: each event stands for itself."""

    def due(self, now_ms: int) -> bool:
        """Once a day, there is an old day to drop."""
        return now_ms * 1000 // DAY_US > self._newest_day

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Drops the days before the window."""
        self._newest_day = now_ms * 1000 // DAY_US
        for kind in (SEEN, CLEAN):
            changes.delete_range(kind, kind + day(self._newest_day - self._dedup_days))
        if self._persons is not None:
            changes.delete_range(PERSON, PERSON + day(self._newest_day - self._persons.days))

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Nothing: results depend on the input alone."""

    def _step(self, step: Step, ruling: ActivePolicy, changes: Changes, out: Outputs) -> Step:
        governed, clean = govern_step(JOB, step, self._prefix_clean(step, changes), ruling.redactor, ruling.version)
        out.emit("governed-steps", step["trajectory_id"], governed)
        if clean:
            changes.put(clean_key(step, step["step_index"], 0), b"")
        return governed

    @staticmethod
    def _feedback(feedback: Feedback, ruling: ActivePolicy, out: Outputs) -> Feedback:
        governed = govern_feedback(JOB, feedback, ruling.redactor, ruling.version)
        out.emit("governed-feedback", feedback["trajectory_id"], governed)
        return governed

    def _account(self, record: Record, event: Any, governed: Step | Feedback, out: Outputs) -> None:
        """Counts and tells what was redacted, if anything was."""
        stamp = governed["governed"]
        assert stamp is not None
        for rule, times in stamp["redactions"].items():
            out.count(metrics.REDACTIONS.labels(rule), times)
        if stamp["redactions"]:
            self._audit(record, event, "redacted", stamp["redactions"], stamp["policy_version"], out)

    def _withhold(self, record: Record, event: Any, why: str, version: int, out: Outputs) -> None:
        out.count(metrics.WITHHELD.labels(record.topic))
        self._audit(record, event, "withheld", {why: 1}, version, out)

    @staticmethod
    def _audit(
        record: Record,
        event: Any,
        action: str,
        found: Mapping[str, int],
        version: int,
        out: Outputs,
        *place: int,
    ) -> None:
        """Tells what was found and done; `place` tells apart what happens to one event more than once."""
        entry = new_audit_entry(
            event_id=derived_id(JOB, "audit", action, record.topic, event["event_id"], version, *place),
            occurred_at_us=max(0, record.timestamp_ms) * 1000,
            trajectory_id=event["trajectory_id"],
            source_topic=record.topic,
            source_event_id=event["event_id"],
            tenant=event["tenant"],
            policy_version=version,
            action=action,
            found=dict(found),
            job=JOB,
        )
        out.emit("governance-audit", event["trajectory_id"], entry)

    def _prefix_clean(self, step: Step, changes: Changes) -> bool:
        """Whether the step that it continues is known to be clean; it may have happened some days before."""
        before = shared_step(step)
        days_back = range(self._context_days + 1)
        return before is not None and any(changes.get(clean_key(step, before, days)) is not None for days in days_back)
