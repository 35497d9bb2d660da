"""One trace as a tree: which spans are steps, whose trajectory each belongs to, and which tools each called."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stepstream.services.gateway.otlp.calls import DETAILS, has_content
from stepstream.services.gateway.otlp.messages import CHOICE
from stepstream.services.gateway.otlp.spans import AGENT, CALL, TOOL, Log, Span


@dataclass(slots=True)
class Trace:
    """What has been seen of one trace and is not published yet."""

    trace_id: str
    spans: dict[str, Span] = field(default_factory=dict)
    logs: dict[str, list[Log]] = field(default_factory=dict)
    """Log records by the span that they belong to."""

    _around: dict[str, list[Span]] = field(default_factory=dict)
    """What `above` has found, by parent."""

    def add(self, span: Span) -> None:
        """Takes in a span; the same again changes nothing."""
        self.spans[span.span_id] = span
        self._around.clear()

    def add_log(self, log: Log) -> None:
        """Takes in a log record; the same again changes nothing."""
        known = self.logs.setdefault(log.span_id, [])
        if log not in known:
            known.append(log)

    def root_ended(self) -> bool:
        """Whether the span without a parent is here: nothing above what is known is still running."""
        return any(not span.parent_id for span in self.spans.values())

    def whole(self) -> bool:
        """Whether waiting could add nothing: every parent is here, and every call says what was said."""
        if self.logs or not self.spans:
            return False
        spans = self.spans
        for span in spans.values():
            if span.parent_id and span.parent_id not in spans:
                return False
            if span.role is CALL and not has_content(span):
                return False
        return True

    def above(self, span: Span) -> Sequence[Span]:
        """The known spans around a span, innermost first."""
        parent_id = span.parent_id
        if parent_id not in self.spans:
            return ()
        known = self._around.get(parent_id)
        if known is None:
            known = []
            parent = self.spans.get(parent_id)
            while parent is not None and parent not in known:
                known.append(parent)
                parent = self.spans.get(parent.parent_id)
            self._around[parent_id] = known
        return known

    def calls(self) -> list[Span]:
        """The spans that are steps, by when they began.

        A call inside a call is the same one, told by two instrumentations: the outer one counts, or the inner one
        where only that says what was said. Log records of a span that never came make a span of their own.
        """
        found: list[Span] = []
        outer: dict[str, Span] = {}
        for span in self.spans.values():
            if span.role is not CALL:
                continue
            top = None
            for holder in self.above(span):
                top = holder if holder.role is CALL else top
            if top is None:
                found.append(span)
            elif top.span_id not in outer and self.speaks(span) and not self.speaks(top):
                outer[top.span_id] = span
        if outer:
            found = [outer.get(span.span_id, span) for span in found]
        for span_id, logs in self.logs.items():
            told = _told_by(logs) if span_id not in self.spans else None
            if told is not None:
                found.append(told)
        return sorted(found, key=lambda span: (span.start_ns, span.span_id))

    def speaks(self, span: Span) -> bool:
        """Whether what was said in a call is known."""
        return has_content(span) or span.span_id in self.logs

    def tools(self) -> list[Span]:
        """The outermost tool spans, by when they began; a server's span inside its client's is the same call."""
        found = [
            span
            for span in self.spans.values()
            if span.role is TOOL and not any(s.role is TOOL for s in self.above(span))
        ]
        return sorted(found, key=lambda span: (span.start_ns, span.span_id))


def _told_by(logs: Iterable[Log]) -> Span | None:
    """A span as far as its log records tell of one; None where they tell of no call's answer."""
    told = [log for log in logs if log.name in (DETAILS, CHOICE)]
    if not told:
        return None
    times = [log.time_ns for log in logs]
    first = told[0]
    span = Span(first.trace_id, first.span_id, "", CALL, min(times), 0, first.attributes, first.resource)
    span.failed = "error.type" in first.attributes
    return span


@dataclass(slots=True)
class Run:
    """The steps of one agent's run inside a trace: all or a part of a trajectory."""

    agent: Span | None
    """The agent's span; None for calls outside any."""
    calls: list[Span] = field(default_factory=list)
    parent: "Run | None" = None

    @property
    def began_ns(self) -> int:
        """When it began."""
        return self.agent.start_ns if self.agent is not None else self.calls[0].start_ns


def runs_of(trace: Trace, calls: Iterable[Span]) -> list[Run]:
    """The runs that have steps, callers before the called.

    A run's caller is the nearest agent around it that has steps itself. The first of those without one is the trace's
    own; later ones are below it, as hand-offs are, unless they are the same agent going on.
    """
    runs: dict[str, Run] = {}
    siblings: dict[str, Run] = {}
    for call in calls:
        run = siblings.get(call.parent_id)
        if run is None:
            agent = next((s for s in trace.above(call) if s.role is AGENT), None)
            run = siblings[call.parent_id] = runs.setdefault(agent.span_id if agent else "", Run(agent))
        run.calls.append(call)
    ordered = sorted(runs.values(), key=lambda run: (run.agent is not None, run.began_ns))
    first: Run | None = None
    found: list[Run] = []
    for run in ordered:
        around = trace.above(run.agent) if run.agent is not None else ()
        run.parent = next((runs[s.span_id] for s in around if s.role is AGENT and s.span_id in runs), None)
        if run.parent is None and first is None:
            first = run
        elif run.parent is None and first is not None:
            if first.agent is not None and run.agent is not None and name_of(first.agent) == name_of(run.agent):
                first.calls = sorted(first.calls + run.calls, key=lambda span: (span.start_ns, span.span_id))
                runs[run.agent.span_id] = first
                continue
            run.parent = first
        found.append(run)
    return found


def name_of(agent: Span) -> str:
    """An agent's name by its span."""
    a = agent.attributes
    for key in ("gen_ai.agent.name", "agent.name", "graph.node.id", "traceloop.entity.name"):
        if a.get(key):
            return str(a[key])
    return ""
