"""Each traced record has a span, and the events that follow from it are in its trace."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stepstream.core.tracing import Tracing
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.spans import BatchSpans, JobSpans

CALL, JUDGE = (f"00-{trace * 32}-{'1' * 16}-01" for trace in "ab")
STEP = {"tenant": "acme", "trajectory_id": "t1"}


def record(topic: str, traceparent: str) -> Record:
    return Record(topic, 0, 7, 0, b"t1", b"", traceparent)


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.job = JobSpans(Tracing(provider))

    def names(self) -> list[tuple[str, str]]:
        """Return trace and name of each ended span."""
        spans = self.exporter.get_finished_spans()
        return [(f"{span.context.trace_id:032x}"[0], span.name) for span in spans if span.context]


def test_an_event_follows_from_its_record() -> None:
    spans = Spans()
    batch = BatchSpans(spans.job)
    batch.begin_record(record("steps", CALL), STEP)
    sent = batch.emit("governed-steps", STEP)
    assert sent.split("-")[1] == CALL.split("-")[1]
    batch.begin_record(record("steps", ""), STEP | {"trajectory_id": "t2"})
    assert batch.emit("governed-steps", STEP | {"trajectory_id": "t2"}) == "", "its record has no trace"
    assert spans.names() == [], "nothing has happened before the commit"
    batch.end()
    assert spans.names() == [("a", "process steps"), ("a", "send governed-steps")]


def test_a_label_is_in_the_trace_of_its_newest_step_and_not_of_its_judge() -> None:
    spans = Spans()
    first = BatchSpans(spans.job)
    first.begin_record(record("governed-steps", CALL), STEP)
    first.end()
    later = BatchSpans(spans.job)
    later.begin_record(record("governed-feedback", JUDGE), STEP)
    later.end_records()
    assert later.emit("labeled-trajectories", STEP).split("-")[1] == CALL.split("-")[1]
    assert later.emit("labeled-trajectories", STEP | {"tenant": "other"}) == ""
    later.end()
    assert spans.names()[1:] == [("b", "process governed-feedback"), ("a", "send labeled-trajectories")]


def test_the_memory_of_trajectories_is_bounded() -> None:
    spans = Spans()
    for number in range(10_001):
        spans.job.remember(("acme", str(number)), CALL)
    assert spans.job.context_of(("acme", "0")) == ""
    assert spans.job.context_of(("acme", "10000")) == CALL
