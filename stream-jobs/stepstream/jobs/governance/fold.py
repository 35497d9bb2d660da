"""Govern one partition of steps and feedback: the fold of the `govern` job."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from stepstream.core.prices import Prices
from stepstream.crypto.sealing import is_erased
from stepstream.jobs.governance import JOB
from stepstream.jobs.governance.active_policy import ActivePolicy
from stepstream.jobs.governance.govern_step import call_cost, govern_feedback, govern_step
from stepstream.jobs.governance.same_call import (
    KEPT_DAYS,
    WITHHELD,
    OtherRecord,
    add_record,
    facts_of,
    in_place_of,
    is_left_out,
    take_other_record,
)
from stepstream.jobs.governance.state import (
    CALL,
    CLEAN,
    DAY_US,
    MOVED,
    PERSON,
    SEEN,
    USED,
    TrajectoryPersons,
    clean_key,
    day,
    day_of,
    seen_key,
)
from stepstream.jobs.governance.step_numbers import number_step
from stepstream.jobs.governance.validation import check_envelope, check_feedback, check_step
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.day_limit import DayLimit
from stepstream.jobs.runtime.outputs import Outputs
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.catalogue import GOVERNANCE_AUDIT, GOVERNED_FEEDBACK, GOVERNED_STEPS, STEPS
from stepstream.topics.events import Consent, Feedback, Step, new_audit_entry
from stepstream.topics.ids import derived_id
from stepstream.topics.step_contexts import shared_step

log = logging.getLogger(__name__)


class PolicySource(Protocol):
    """Looks up policies and consent; `ActivePolicies` is one."""

    def of(self, tenant: str) -> ActivePolicy:
        """Return the policy under which a tenant's records are governed."""
        ...

    def consent(self, active: ActivePolicy, event: Any) -> Consent:
        """Return the effective consent of an event."""
        ...


class GovernFold:
    """One partition of steps and feedback.

    State: the ids of seen events; the steps with a clean context, after which alone a step may keep the digest of its
    shared prefix; the persons that the steps of a trajectory name; the indices of its steps.
    """

    def __init__(
        self,
        policies: PolicySource,
        *,
        dedup_days: int,
        max_future_s: float,
        now_us: Callable[[], int],
        context_days: int | None = None,
        erased: Callable[[str, str, int], bool] = lambda tenant, user, occurred_us: False,
        persons: TrajectoryPersons | None = None,
        prices: Prices | None = None,
        limit: DayLimit | None = None,
    ) -> None:
        """Build the fold of a partition.

        Args:
            policies: policies and consent.
            dedup_days: days for which state is kept.
            max_future_s: largest time of an event after `now_us`, in seconds.
            now_us: returns the time, in microseconds since the Unix epoch.
            context_days: days in the past that are searched for a step's context; None: `dedup_days`.
            erased: returns True if a tenant's person was erased after a time, in microseconds since the Unix epoch.
            persons: finds the person of feedback that names nobody; None: it stays without a person.
            prices: price table for steps that name no cost; None: they stay without one.
            limit: bounds the events and persons of the state; None: their number has no bound.
        """
        self._policies = policies
        self._dedup_days = dedup_days
        self._max_future_us = int(max_future_s * 1e6)
        self._now_us = now_us
        self._context_days = dedup_days if context_days is None else context_days
        self._erased, self._persons = erased, persons
        self._prices = prices or Prices()
        self._limit = limit
        self._swept_day = 0

    def apply(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        """Validate one event, withhold it if its person is erased, drop it if it is a duplicate, else govern it."""
        if is_erased(event):
            self._withhold(record, event, "erased", 0, out)
            return
        self._check(record, event)
        is_step = record.topic == STEPS
        person = None if is_step or self._persons is None else self._persons.of(event, record, changes, out)
        if person:
            event = event | {"user": person}
        if person is False or self._is_late(event):
            log.error(
                "%s[%d]@%d arrived after the erasure of its person and may be unencrypted: run `stepstream erase` for "
                "this person again",
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
            day_of_person = self._persons.add(cast(Step, event), record, changes, out)
            if self._limit is not None and day_of_person is not None:
                self._limit.add(PERSON, day_of_person)
        self._govern(record, event, changes, out)
        # Last: an event whose result is a dead letter may be sent again and is then no duplicate.
        changes.put(seen, b"")
        if self._limit is not None:
            self._limit.add(SEEN, day_of(event))

    def _check(self, record: Record, event: dict[str, Any]) -> None:
        check_envelope(event, record.key, self._now_us(), self._max_future_us)
        if record.topic == STEPS:
            check_step(event)
        else:
            check_feedback(event)

    def _is_late(self, event: dict[str, Any]) -> bool:
        """Return True if the event's person was erased after it happened."""
        user = event["user"]
        return user is not None and self._erased(event["tenant"], user, event["occurred_at_us"])

    def _govern(self, record: Record, event: dict[str, Any], changes: Changes, out: Outputs) -> None:
        active = self._policies.of(event["tenant"])
        consent = self._policies.consent(active, event)
        if consent != event["consent"]:
            event = event | {"consent": consent}
        if record.topic == STEPS:
            self._govern_call(record, cast(Step, event), active, changes, out)
        elif consent == "none":
            self._withhold(record, event, "consent:none", active.version, out)
        else:
            governed = self._govern_feedback(cast(Feedback, event), active, out)
            self._report_redactions(record, event, governed, out)

    def _govern_call(self, record: Record, step: Step, active: ActivePolicy, changes: Changes, out: Outputs) -> None:
        """Govern a step as one record of its call; it may be left out or supersede the other one."""
        other = take_other_record(step, changes)
        if step["consent"] == "none":
            self._withhold(record, step, "consent:none", active.version, out)
            if other is None or other.step_index == WITHHELD:
                add_record(step, WITHHELD, changes)  # the call's other record is withheld too
            else:
                self._govern_step(in_place_of(step, other), other, active, changes, out)
        elif other is not None and is_left_out(step, other):
            out.count(metrics.DUPLICATES.labels(record.topic))
            self._audit(record, step, "duplicate", {"call": 1}, active.version, out)
            if other.step_index != WITHHELD:
                for fact in facts_of(step, other.step_index, JOB):
                    self._govern_feedback(fact, active, out)
        else:
            step = step if other is None else in_place_of(step, other)
            self._report_redactions(record, step, self._govern_step(step, other, active, changes, out), out)

    def _govern_step(
        self, step: Step, other: OtherRecord | None, active: ActivePolicy, changes: Changes, out: Outputs
    ) -> Step:
        numbered = number_step(step, changes, self._context_days, None if other is None else other.step_index)
        step = numbered.step
        prefix_clean = self._is_prefix_clean(step, changes)
        governed, clean = govern_step(JOB, step, prefix_clean, active.redactor, active.version)
        if governed["cost_usd"] is None:
            governed["cost_usd"] = call_cost(step, self._prices)
        if other is None:
            add_record(step, step["step_index"], changes)
        elif governed["governed"] is not None:
            governed["governed"]["supersedes"] = other.source_event_id
        out.emit(GOVERNED_STEPS, step["trajectory_id"], governed)
        numbered.save(changes)
        if clean and step["consent"] != "none":  # a withheld step has no content to judge its context by
            changes.put(clean_key(step, step["step_index"], 0), b"")
        elif other is not None:  # the poorer record may have lacked the redacted text
            for days in (-1, 0, 1):
                changes.delete(clean_key(step, step["step_index"], days))
        return governed

    def _is_prefix_clean(self, step: Step, changes: Changes) -> bool:
        """Return True if the step that this one continues has a clean context; it may be some days older."""
        before = shared_step(step)
        days_back = range(self._context_days + 1)
        return before is not None and any(changes.get(clean_key(step, before, days)) is not None for days in days_back)

    @staticmethod
    def _govern_feedback(feedback: Feedback, active: ActivePolicy, out: Outputs) -> Feedback:
        governed = govern_feedback(JOB, feedback, active.redactor, active.version)
        out.emit(GOVERNED_FEEDBACK, feedback["trajectory_id"], governed)
        return governed

    def _report_redactions(self, record: Record, event: Any, governed: Step | Feedback, out: Outputs) -> None:
        stamp = governed["governed"]
        assert stamp is not None
        for rule, count in stamp["redactions"].items():
            out.count(metrics.REDACTIONS.labels(rule), count)
        if stamp["redactions"]:
            self._audit(record, event, "redacted", stamp["redactions"], stamp["policy_version"], out)

    def _withhold(self, record: Record, event: Any, reason: str, version: int, out: Outputs) -> None:
        out.count(metrics.WITHHELD.labels(record.topic))
        self._audit(record, event, "withheld", {reason: 1}, version, out)

    @staticmethod
    def _audit(
        record: Record,
        event: Any,
        action: str,
        found: Mapping[str, int],
        version: int,
        out: Outputs,
        *position: int,
    ) -> None:
        """Emit an audit entry; `position` gives repeated actions on one event ids of their own."""
        origin = (action, record.topic, event["event_id"], version, *position)
        entry = new_audit_entry(
            event_id=derived_id(JOB, "audit", *origin, tenant=event["tenant"]),
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
        out.emit(GOVERNANCE_AUDIT, event["trajectory_id"], entry)

    def end_batch(self, changes: Changes, out: Outputs) -> None:
        """Store the numbers of events; each event is independent of its batch otherwise."""
        if self._limit is not None:
            self._limit.save(changes, out)

    def due(self, now_ms: int) -> bool:
        """Return True once a day, when an old day can be deleted, and while the limit is exceeded."""
        return now_ms * 1000 // DAY_US > self._swept_day or (self._limit is not None and self._limit.is_exceeded)

    def tick(self, now_ms: int, changes: Changes, out: Outputs) -> None:
        """Delete the days before the window, and the oldest events beyond the limit."""
        today = now_ms * 1000 // DAY_US
        if today > self._swept_day:
            self._swept_day = today
            days = dict.fromkeys((SEEN, CLEAN, USED, MOVED), self._dedup_days) | {CALL: KEPT_DAYS}
            if self._persons is not None:
                days[PERSON] = self._persons.days
            for kind, kept in days.items():
                changes.delete_range(kind, kind + day(today - kept))
                if self._limit is not None:
                    self._limit.expire(kind, day(today - kept), changes, out)
        if self._limit is not None:
            self._limit.trim(changes, out)

    def restore_published(self, event: dict[str, Any], changes: Changes) -> None:
        """Do nothing: results depend on the input alone."""
