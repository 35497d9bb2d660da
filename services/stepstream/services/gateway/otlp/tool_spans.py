"""Add results, errors and durations from tool spans to the tool calls of steps."""

from collections.abc import Mapping, Sequence

from stepstream.services.gateway.otlp.attributes import text
from stepstream.services.gateway.otlp.spans import Span
from stepstream.services.gateway.otlp.trace import Run, Trace
from stepstream.topics.events import Step, ToolCall, new_tool_call

_IDS = ("gen_ai.tool.call.id", "tool_call.id", "tool.id")
_NAMES = ("gen_ai.tool.name", "tool.name", "mcp.tool.name", "traceloop.entity.name")
_ARGUMENTS = ("gen_ai.tool.call.arguments", "tool.parameters", "input.value", "traceloop.entity.input")
_RESULTS = ("gen_ai.tool.call.result", "output.value", "traceloop.entity.output")


def attach(trace: Trace, runs: Sequence[Run], steps: Mapping[str, Step]) -> dict[str, tuple[Step, str]]:
    """Match each tool span to the step that called the tool; return that step and the call's id, by tool span.

    The match is the step with the call's id. Otherwise it is the last step of the same run before the span, and its
    first call of that name without a result. A step without captured content gets the call from the span.
    """
    tools = trace.tools()
    if not tools:
        return {}
    for step in steps.values():
        # Copy the calls: the next prompt is compared with the response without results.
        step["response"] = {**step["response"], "tool_calls": [call.copy() for call in step["response"]["tool_calls"]]}
    by_id = {call["call_id"]: (step, call) for step in steps.values() for call in step["response"]["tool_calls"]}
    matched: set[int] = set()
    calling_steps: dict[str, tuple[Step, str]] = {}
    for tool in tools:
        called = by_id.get(_attribute(tool, _IDS))
        if called is None or id(called[1]) in matched:
            called = _by_order(trace, tool, runs, steps, matched)
        if called is None:
            continue
        step, call = called
        matched.add(id(call))
        calling_steps[tool.span_id] = step, call["call_id"]
        result = _attribute(tool, _RESULTS)
        call["result"] = result if result or any(name in tool.attributes for name in _RESULTS) else None
        call["error"] = tool.error
        call["duration_ms"] = tool.duration_ms
    return calling_steps


def _by_order(
    trace: Trace, tool: Span, runs: Sequence[Run], steps: Mapping[str, Step], matched: set[int]
) -> tuple[Step, ToolCall] | None:
    around = {span.span_id for span in trace.ancestors(tool)}
    run = next((r for r in reversed(runs) if r.agent is not None and r.agent.span_id in around), None)
    run = run or next((r for r in runs if r.agent is None), None) or runs[0] if runs else None
    before = [span for span in run.calls if span.start_ns <= tool.start_ns] if run is not None else []
    if not before:
        return None
    step = steps[before[-1].span_id]
    calls = step["response"]["tool_calls"]
    name = _attribute(tool, _NAMES) or tool.name
    for call in calls:
        if call["name"] == name and id(call) not in matched and not _attribute(tool, _IDS):
            return step, call
    call = new_tool_call(
        call_id=_attribute(tool, _IDS) or tool.span_id, name=name, arguments=_attribute(tool, _ARGUMENTS)
    )
    calls.append(call)
    return step, call


def _attribute(span: Span, names: Sequence[str]) -> str:
    return next((text(span.attributes[name]) for name in names if name in span.attributes), "")
