"""`gen_ai.evaluation.result`: what an evaluator said of a call, as feedback."""

from collections.abc import Iterator

from stepstream.services.gateway.otlp.calls import EVALUATION
from stepstream.services.gateway.otlp.spans import Log, Resource
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.services.gateway.otlp.values import Attributes


def evaluations(trace: Trace) -> Iterator[tuple[str, int, Attributes, Resource, int]]:
    """The evaluations of a trace: span, number on that span, attributes, where from, and when (nanoseconds)."""
    for span in trace.spans.values():
        if not span.events:
            continue
        told = [event for event in span.events if event.name == EVALUATION]
        for number, event in enumerate(told):
            yield span.span_id, number, event.attributes, span.resource, event.time_ns
    for span_id, logs in trace.logs.items():
        for log in logs:
            if log.name == EVALUATION:
                yield span_id, log.time_ns, _attributes(log), log.resource, log.time_ns


def _attributes(log: Log) -> Attributes:
    return {**log.body, **log.attributes} if isinstance(log.body, dict) else log.attributes
