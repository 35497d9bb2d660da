"""Find the steps, the agents' runs and the tool calls in one trace's tree of spans."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stepstream.services.gateway.otlp.attributes import Attributes
from stepstream.services.gateway.otlp.calls import DETAILS, has_content
from stepstream.services.gateway.otlp.messages import CHOICE
from stepstream.services.gateway.otlp.spans import AGENT, CALL, TOOL, Log, Span


@dataclass(slots=True)
class Trace:
    """The unpublished spans and log records of one trace."""

    trace_id: str
    spans: dict[str, Span] = field(default_factory=dict)
    logs: dict[str, list[Log]] = field(default_factory=dict)
    """Log records by span id."""

    _ancestors: dict[str, list[Span]] = field(default_factory=dict)
    """Results of `ancestors`, by parent id."""

    def add(self, span: Span) -> None:
        """Add a span; adding it again changes nothing."""
        self.spans[span.span_id] = span
        self._ancestors.clear()

    def add_log(self, log: Log) -> None:
        """Add a log record; adding it again changes nothing."""
        known = self.logs.setdefault(log.span_id, [])
        if log not in known:
            known.append(log)

    def has_root(self) -> bool:
        """Return True if the root span has arrived, so that no ancestor is still running."""
        return any(not span.parent_id for span in self.spans.values())

    def is_complete(self) -> bool:
        """Return True if every parent has arrived and every call has its content, so that waiting adds nothing."""
        if self.logs or not self.spans:
            return False
        spans = self.spans
        for span in spans.values():
            if span.parent_id and span.parent_id not in spans:
                return False
            if span.role is CALL and not has_content(span):
                return False
        return True

    def ancestors(self, span: Span) -> Sequence[Span]:
        """Return the known ancestors of a span, innermost first."""
        parent_id = span.parent_id
        if parent_id not in self.spans:
            return ()
        known = self._ancestors.get(parent_id)
        if known is None:
            known = []
            parent = self.spans.get(parent_id)
            while parent is not None and parent not in known:
                known.append(parent)
                parent = self.spans.get(parent.parent_id)
            self._ancestors[parent_id] = known
        return known

    def calls(self) -> list[Span]:
        """Return the spans that are steps, by start time.

        Two instrumentations may report one call as a span inside another. The outer one counts, or the inner one if
        only that has content. Log records of a span that never came give a span of their own.
        """
        steps: list[Span] = []
        outer: dict[str, Span] = {}
        for span in self.spans.values():
            if span.role is not CALL:
                continue
            top = None
            for holder in self.ancestors(span):
                top = holder if holder.role is CALL else top
            if top is None:
                steps.append(span)
            elif top.span_id not in outer and self.call_has_content(span) and not self.call_has_content(top):
                outer[top.span_id] = span
        if outer:
            steps = [outer.get(span.span_id, span) for span in steps]
        for span_id, logs in self.logs.items():
            span_of_logs = _span_from_logs(logs) if span_id not in self.spans else None
            if span_of_logs is not None:
                steps.append(span_of_logs)
        return sorted(steps, key=lambda span: (span.start_ns, span.span_id))

    def call_has_content(self, span: Span) -> bool:
        """Return True if the call's messages are known."""
        return has_content(span) or span.span_id in self.logs

    def tools(self) -> list[Span]:
        """Return the outermost tool spans, by start time; a server's span inside its client's is the same call."""
        outermost = [
            span
            for span in self.spans.values()
            if span.role is TOOL and not any(s.role is TOOL for s in self.ancestors(span))
        ]
        return sorted(outermost, key=lambda span: (span.start_ns, span.span_id))


def _span_from_logs(logs: Iterable[Log]) -> Span | None:
    """Build a span from its log records; None: they contain no call's response."""
    contents = [log for log in logs if log.name in (DETAILS, CHOICE)]
    if not contents:
        return None
    times = [log.time_ns for log in logs]
    first = contents[0]
    span = Span(first.trace_id, first.span_id, "", CALL, min(times), 0, first.attributes, first.resource)
    span.failed = "error.type" in first.attributes
    return span


@dataclass(slots=True)
class Run:
    """The steps of one agent's run inside a trace: all or part of a trajectory."""

    agent: Span | None
    """The agent's span; None: the calls have none."""
    calls: list[Span] = field(default_factory=list)
    parent: "Run | None" = None

    @property
    def start_ns(self) -> int:
        """Start time in nanoseconds."""
        return self.agent.start_ns if self.agent is not None else self.calls[0].start_ns


def runs_of(trace: Trace, calls: Iterable[Span]) -> list[Run]:
    """Return the runs that have steps, callers before callees.

    A run's caller is the nearest ancestor agent that has steps itself. The first run without a caller is the trace's
    own. Later ones become its children, like hand-offs, unless the same agent continues.
    """
    runs: dict[str, Run] = {}
    siblings: dict[str, Run] = {}
    for call in calls:
        run = siblings.get(call.parent_id)
        if run is None:
            agent = next((s for s in trace.ancestors(call) if s.role is AGENT), None)
            run = siblings[call.parent_id] = runs.setdefault(agent.span_id if agent else "", Run(agent))
        run.calls.append(call)
    ordered = sorted(runs.values(), key=lambda run: (run.agent is not None, run.start_ns))
    first: Run | None = None
    with_steps: list[Run] = []
    for run in ordered:
        around = trace.ancestors(run.agent) if run.agent is not None else ()
        run.parent = next((runs[s.span_id] for s in around if s.role is AGENT and s.span_id in runs), None)
        if run.parent is None and first is None:
            first = run
        elif run.parent is None and first is not None:
            if (
                first.agent is not None
                and run.agent is not None
                and name_of(first.agent.attributes) == name_of(run.agent.attributes)
            ):
                first.calls = sorted(first.calls + run.calls, key=lambda span: (span.start_ns, span.span_id))
                runs[run.agent.span_id] = first
                continue
            run.parent = first
        with_steps.append(run)
    return with_steps


def name_of(agent: Attributes) -> str:
    """Return an agent's name from its span's attributes; empty: none."""
    for key in ("gen_ai.agent.name", "agent.name", "graph.node.id", "traceloop.entity.name"):
        if agent.get(key):
            return str(agent[key])
    return ""
