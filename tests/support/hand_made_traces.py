"""Build OTLP spans, and assemble a trace of them into steps and feedback."""

from typing import Any

from stepstream.services.gateway.otlp.assembly import Assembler
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.services.gateway.otlp.spans import Log, Resource, Span, role_of
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.topics.events import Feedback, Step

TRACE = "ab" * 16
DEFAULTS = Defaults("default", "train", "agent")
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "demo"}
AGENT = {"gen_ai.operation.name": "invoke_agent"}
TOOL = {"gen_ai.operation.name": "execute_tool"}
RESOURCE = Resource({"service.name": "shop"})


def span(span_id: str, parent: str, at: int, until: int | None = None, name: str = "", **attributes: Any) -> Span:
    """Return a span that begins at second `at`; `__` in attribute names stands for a dot."""
    a = attributes.pop("a", {}) | {key.replace("__", "."): value for key, value in attributes.items()}
    end = at + 1 if until is None else until
    return Span(TRACE, span_id, parent, role_of(a, name), at * 10**9, end * 10**9, a, RESOURCE, name=name)


def answer(content: str, *calls: tuple[str, str]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "content": content}]
    parts += [{"type": "tool_call", "id": call_id, "name": name, "arguments": {}} for call_id, name in calls]
    return [{"role": "assistant", "parts": parts}]


def assembled(
    *spans: Span, logs: tuple[Log, ...] = (), assembler: Assembler | None = None
) -> tuple[list[Step], list[Feedback]]:
    """Return the steps and feedback of one trace; without spans it is the trace of `logs`."""
    trace = Trace(logs[0].trace_id if logs and not spans else TRACE)
    for each in spans:
        trace.add(each)
    for log in logs:
        trace.add_log(log)
    records = (assembler or Assembler("test/1", SpanIndex(100))).records(trace, DEFAULTS)
    steps = [r.record for r in records if r.topic == "steps"]
    return steps, [r.record for r in records if r.topic == "feedback"]
