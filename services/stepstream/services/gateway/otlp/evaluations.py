"""Turn `gen_ai.evaluation.result` events about calls, tools, agents' runs or conversations into feedback.

The subject is the step, tool call or run of the event's span or of a span around it. Otherwise it is the response that
the event names, else the conversation or trace. The owner is the person that the event names, else the step's owner.
"""

from collections.abc import Iterator, Mapping, Sequence

from stepstream.services.gateway.grant import stricter
from stepstream.services.gateway.otlp.attributes import Attributes, integer, number, text
from stepstream.services.gateway.otlp.calls import EVALUATION
from stepstream.services.gateway.otlp.identity import Defaults, consent_of, identity_of, user_of
from stepstream.services.gateway.otlp.span_index import Owner, SpanIndex, Subject
from stepstream.services.gateway.otlp.spans import CALL, TOOL, Log, Resource, Span
from stepstream.services.gateway.otlp.trace import Run, Trace
from stepstream.topics.events import Feedback, Step, new_feedback
from stepstream.topics.ids import derived_id


class TraceSubjects:
    """Subjects that the spans of one trace stand for."""

    def __init__(
        self, trace: Trace, runs: Sequence[Run], steps: Mapping[str, Step], tools: Mapping[str, tuple[Step, str]]
    ) -> None:
        """Take the trace's steps, and each tool's calling step and call id, both by span id."""
        self._trace = trace
        self._steps = steps
        self._tools = tools
        self._below: dict[str, Step] = {}
        for run in runs:
            for call in run.calls:
                for span in trace.ancestors(call):
                    self._below.setdefault(span.span_id, steps[call.span_id])
        self.whole_trace = _subject(steps[runs[0].calls[0].span_id]) if runs else None
        """Subject of the trace as a whole; None: it has no steps."""

    def subject_of(self, span: Span) -> Subject | None:
        """Return the subject of a span: its own step or tool call, the run inside it, else that of its ancestors."""
        for holder in (span, *self._trace.ancestors(span)):
            span_id = holder.span_id
            if span_id in self._steps:
                return _subject(self._steps[span_id], with_index=True)
            if span_id in self._tools:
                step, call_id = self._tools[span_id]
                return _subject(step, with_index=True)._replace(tool_call_id=call_id)
            if (
                span_id in self._below and holder.role is not TOOL
            ):  # a server's tool span is the same call as its client's
                return _subject(self._below[span_id], with_index=holder.role is CALL)
        return None


def feedback_of(
    trace: Trace, subjects: TraceSubjects, span_index: SpanIndex, defaults: Defaults, job: str
) -> Iterator[Feedback]:
    """Yield the evaluations of a trace as feedback without a `producer`; skips those without a subject.

    Args:
        trace: its evaluations are span events or log records; their spans may be missing.
        subjects: of its spans.
        span_index: steps and subjects of earlier requests' spans.
        defaults: identity for spans without one.
        job: prefix of the derived event ids.
    """
    for span_id, number_on_span, a, resource, time_ns in _evaluations(trace):
        span = trace.spans.get(span_id)
        holders = (span, *trace.ancestors(span)) if span is not None else ()
        around = [span.resource.attributes] if span is not None else []
        around += [holder.attributes for holder in reversed(holders)]
        context = identity_of((resource.attributes, *around, a), defaults)
        subject = subjects.subject_of(span) if span is not None else None
        if subject is None and span_id:
            ids = [span_id, *(holder.parent_id for holder in holders)]
            subject = next(
                filter(None, (span_index.subject_of(defaults.tenant, trace.trace_id, each) for each in ids if each)),
                None,
            )
        response_id = text(a.get("gen_ai.response.id"))
        if response_id and (subject is None or subject.step_index is None):
            subject = span_index.subject_of_response(defaults.tenant, response_id) or subject
        named = text(a.get("stepstream.trajectory_id")) or (context.trajectory_id if subject is None else "")
        if named and (subject is None or named != subject.trajectory_id):
            subject = Subject(named, integer(a.get("stepstream.step_index"), 31))
        if subject is None:
            conversation = Subject(context.conversation) if context.conversation else None
            subject = (
                conversation
                or subjects.whole_trace
                or span_index.subject_of(defaults.tenant, trace.trace_id, "")
                or Subject(trace.trace_id)
            )
        if not subject.trajectory_id:
            continue
        name = text(a.get("gen_ai.evaluation.name")) or "evaluation"
        identity: list[str | int] = [trace.trace_id, span_id, "evaluation", name, number_on_span]
        if not span_id:  # several evaluations of one moment may have different subjects
            identity += [subject.trajectory_id, "" if subject.step_index is None else subject.step_index]
        owner = subject.owner
        consent = text(a.get("stepstream.consent")) or (
            owner.consent if owner is not None else context.fields["consent"]
        )
        yield new_feedback(
            event_id=derived_id(job, *identity, tenant=defaults.tenant),
            occurred_at_us=time_ns // 1000,
            producer="",
            tenant=defaults.tenant,
            consent=stricter(consent_of(consent), defaults.consent_ceiling),
            user=user_of(a) or (owner.user if owner is not None else None) or context.fields["user"],
            trajectory_id=subject.trajectory_id,
            step_index=subject.step_index,
            tool_call_id=subject.tool_call_id,
            name=name,
            value=number(a.get("gen_ai.evaluation.score.value")),
            category=text(a.get("gen_ai.evaluation.score.label")) or None,
            comment=text(a.get("gen_ai.evaluation.explanation")) or None,
            source=text(a.get("stepstream.source")) or "judge",
        )


def owner_of(step: Step) -> Owner:
    """Return the owner of a step."""
    return Owner(step["tenant"], step["user"], step["consent"])


def _subject(step: Step, *, with_index: bool = False) -> Subject:
    return Subject(step["trajectory_id"], step["step_index"] if with_index else None, owner=owner_of(step))


def _evaluations(trace: Trace) -> Iterator[tuple[str, int, Attributes, Resource, int]]:
    """Yield each evaluation: span id, number on the span, attributes, resource, and time in ns."""
    for span in trace.spans.values():
        if not span.events:
            continue
        events = [event for event in span.events if event.name == EVALUATION]
        for number_on_span, event in enumerate(events):
            yield span.span_id, number_on_span, event.attributes, span.resource, event.time_ns
    for span_id, logs in trace.logs.items():
        for log in logs:
            if log.name == EVALUATION:
                yield span_id, log.time_ns, _attributes(log), log.resource, log.time_ns


def _attributes(log: Log) -> Attributes:
    return {**log.body, **log.attributes} if isinstance(log.body, dict) else log.attributes
