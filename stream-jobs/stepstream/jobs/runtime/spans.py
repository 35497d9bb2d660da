"""Trace the records of a job: a span for each record that has a trace, and one for each event that follows from it.

An event that follows from a whole trajectory, as a label, is in the trace of the newest traced step of it. The job
remembers that in memory, for `_TRAJECTORIES` trajectories: after a restart, a label may have no trace.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from stepstream.config import Settings
from stepstream.core.tracing import Span, Tracing, is_sampled, open_tracing
from stepstream.jobs.runtime.record import Record
from stepstream.topics.catalogue import FEEDBACK, GOVERNED_FEEDBACK

_TRAJECTORIES = 10_000
_ABOUT_STEPS = (FEEDBACK, GOVERNED_FEEDBACK)
"""Topics whose traces are those of judges: a label is in the trace of the agent's call."""


class JobSpans:
    """The spans of one job's worker. Use from one thread."""

    def __init__(self, tracing: Tracing) -> None:
        self.tracing = tracing
        self._newest: OrderedDict[tuple[str, str], str] = OrderedDict()

    def remember(self, trajectory: tuple[str, str], traceparent: str) -> None:
        """Save the context of the newest traced record of a trajectory: tenant and id."""
        self._newest[trajectory] = traceparent
        self._newest.move_to_end(trajectory)
        if len(self._newest) > _TRAJECTORIES:
            self._newest.popitem(last=False)

    def context_of(self, trajectory: tuple[str, str]) -> str:
        """Return the context of the newest traced record of a trajectory; empty: unknown."""
        return self._newest.get(trajectory, "")

    def close(self) -> None:
        """Export what is left."""
        self.tracing.close()


def open_spans(settings: Settings, job: str) -> JobSpans | None:
    """Return the spans of a job; None: tracing is off."""
    tracing = open_tracing(settings, job)
    return None if tracing is None else JobSpans(tracing)


class BatchSpans:
    """The spans of one batch, which end when its transaction is committed."""

    def __init__(self, spans: JobSpans) -> None:
        self._spans = spans
        self._begun: list[Span] = []
        self._cause = ""

    def begin_record(self, record: Record, event: Mapping[str, Any]) -> None:
        """Begin the span of a record, if it has a trace: the events that are emitted next follow from it."""
        self._cause = ""
        if is_sampled(record.traceparent):
            facts = {"messaging.kafka.offset": record.offset, "messaging.destination.partition.id": record.partition}
            self._cause = self._begin("process", record.topic, "consumer", record.traceparent, event, facts)
            if record.topic not in _ABOUT_STEPS and event.get("trajectory_id"):
                self._spans.remember(_trajectory(event), self._cause)

    def end_records(self) -> None:
        """Note that the events that are emitted next follow from no single record."""
        self._cause = ""

    def emit(self, topic: str, event: Mapping[str, Any]) -> str:
        """Begin the span of an event to publish; return its context, empty: it has no trace."""
        cause = self._cause or self._spans.context_of(_trajectory(event))
        return self._begin("send", topic, "producer", cause, event, {}) if cause else ""

    def end(self) -> None:
        """End all spans."""
        for span in self._begun:
            span.end()

    def _begin(
        self, operation: str, topic: str, kind: Any, parent: str, event: Mapping[str, Any], facts: Mapping[str, int]
    ) -> str:
        tenant, trajectory = _trajectory(event)
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.destination.name": topic,
            "stepstream.tenant": tenant,
            "stepstream.trajectory_id": trajectory,
            **facts,
        }
        span = self._spans.tracing.start(f"{operation} {topic}", kind, parent, attributes)
        self._begun.append(span)
        return span.traceparent


def _trajectory(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return tenant and id of the trajectory that a record is about; empty where it names none."""
    return event.get("tenant") or "", event.get("trajectory_id") or ""
