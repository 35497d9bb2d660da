"""`gen_ai.evaluation.result`: what an evaluator said of a call, a tool, an agent's run or a conversation, as feedback.

It is about the step, tool call or run that its span is or stands in; else about the response that it names; else about
the conversation or trace. It belongs to whom it names, else to whom the step belongs.
"""

from collections.abc import Iterator, Mapping, Sequence

from stepstream.services.gateway.otlp.attributes import Attributes, number, text, whole
from stepstream.services.gateway.otlp.calls import EVALUATION
from stepstream.services.gateway.otlp.identity import Defaults, consent_of, identity_of, user_of
from stepstream.services.gateway.otlp.span_index import About, SpanIndex, Whose
from stepstream.services.gateway.otlp.spans import CALL, TOOL, Log, Resource, Span
from stepstream.services.gateway.otlp.trace import Run, Trace
from stepstream.topics.events import Feedback, Step, new_feedback
from stepstream.topics.ids import derived_id


class Told:
    """What the spans of one trace became."""

    def __init__(
        self, trace: Trace, runs: Sequence[Run], steps: Mapping[str, Step], tools: Mapping[str, tuple[Step, str]]
    ) -> None:
        """`steps` by span; `tools` are the step that called it and the call's id, by span."""
        self._trace = trace
        self._steps = steps
        self._tools = tools
        self._below: dict[str, Step] = {}
        for run in runs:
            for call in run.calls:
                for span in trace.above(call):
                    self._below.setdefault(span.span_id, steps[call.span_id])
        self.whole = _about(steps[runs[0].calls[0].span_id]) if runs else None
        """What the trace as a whole is about; None where it has no steps."""

    def about(self, span: Span) -> About | None:
        """What a span stands for: its own step or tool call, the run inside it, else what is around it."""
        for holder in (span, *self._trace.above(span)):
            span_id = holder.span_id
            if span_id in self._steps:
                return _about(self._steps[span_id], step_too=True)
            if span_id in self._tools:
                step, call_id = self._tools[span_id]
                return _about(step, step_too=True)._replace(tool_call_id=call_id)
            if span_id in self._below and holder.role is not TOOL:  # a server's side is the same call as its client's
                return _about(self._below[span_id], step_too=holder.role is CALL)
        return None


def feedback_of(trace: Trace, told: Told, places: SpanIndex, defaults: Defaults, job: str) -> Iterator[Feedback]:
    """The evaluations of a trace, without their `producer`; those of which nothing tells what they are about are left
    out.

    Args:
        trace: with evaluations as span events or log records, whether or not their spans are here.
        told: what its spans became.
        places: what spans of earlier requests became.
        defaults: of the tenant that sent it.
        job: what the ids of the events are derived with.
    """
    for span_id, place_number, a, resource, time_ns in _evaluations(trace):
        span = trace.spans.get(span_id)
        holders = (span, *trace.above(span)) if span is not None else ()
        around = [span.resource.attributes] if span is not None else []
        around += [holder.attributes for holder in reversed(holders)]
        said = identity_of((resource.attributes, *around, a), defaults)
        about = told.about(span) if span is not None else None
        if about is None and span_id:
            ids = [span_id, *(holder.parent_id for holder in holders)]
            about = next(filter(None, (places.about(trace.trace_id, each) for each in ids if each)), None)
        response_id = text(a.get("gen_ai.response.id"))
        if response_id and (about is None or about.step_index is None):
            about = places.of_response(defaults.tenant, response_id) or about
        named = text(a.get("stepstream.trajectory_id")) or (said.trajectory_id if about is None else "")
        if named and (about is None or named != about.trajectory_id):
            about = About(named, whole(a.get("stepstream.step_index"), 31))
        if about is None:
            conversation = About(said.conversation) if said.conversation else None
            about = conversation or told.whole or places.about(trace.trace_id, "") or About(trace.trace_id)
        if not about.trajectory_id:
            continue
        name = text(a.get("gen_ai.evaluation.name")) or "evaluation"
        identity: list[str | int] = [trace.trace_id, span_id, "evaluation", name, place_number]
        if not span_id:  # of one moment there may be several, about different things
            identity += [about.trajectory_id, "" if about.step_index is None else about.step_index]
        whose = about.whose
        consent = text(a.get("stepstream.consent")) or (whose.consent if whose is not None else said.fields["consent"])
        yield new_feedback(
            event_id=derived_id(job, *identity),
            occurred_at_us=time_ns // 1000,
            producer="",
            tenant=defaults.tenant,
            consent=consent_of(consent),
            user=user_of(a) or (whose.user if whose is not None else None) or said.fields["user"],
            trajectory_id=about.trajectory_id,
            step_index=about.step_index,
            tool_call_id=about.tool_call_id,
            name=name,
            value=number(a.get("gen_ai.evaluation.score.value")),
            category=text(a.get("gen_ai.evaluation.score.label")) or None,
            comment=text(a.get("gen_ai.evaluation.explanation")) or None,
            source=text(a.get("stepstream.source")) or "judge",
        )


def whose(step: Step) -> Whose:
    """Whose a step is."""
    return Whose(step["tenant"], step["user"], step["consent"])


def _about(step: Step, *, step_too: bool = False) -> About:
    return About(step["trajectory_id"], step["step_index"] if step_too else None, whose=whose(step))


def _evaluations(trace: Trace) -> Iterator[tuple[str, int, Attributes, Resource, int]]:
    """The evaluations of a trace: span, number on that span, attributes, where from, and when (nanoseconds)."""
    for span in trace.spans.values():
        if not span.events:
            continue
        told = [event for event in span.events if event.name == EVALUATION]
        for place_number, event in enumerate(told):
            yield span.span_id, place_number, event.attributes, span.resource, event.time_ns
    for span_id, logs in trace.logs.items():
        for log in logs:
            if log.name == EVALUATION:
                yield span_id, log.time_ns, _attributes(log), log.resource, log.time_ns


def _attributes(log: Log) -> Attributes:
    return {**log.body, **log.attributes} if isinstance(log.body, dict) else log.attributes
