"""Tool spans become what is known of the tool calls of steps: results, errors, times."""

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
    """Puts each tool span on the step that called the tool; returns that step and the call's id, by tool span.

    That is the step with the call's id; else the last step of the same run before it, by the first call of that name
    there without a result. A step whose content was not captured gets the call from the span.
    """
    tools = trace.tools()
    if not tools:
        return {}
    for step in steps.values():
        # The response is also what the next prompt is compared with, where no results stand beside the calls.
        step["response"] = {**step["response"], "tool_calls": [call.copy() for call in step["response"]["tool_calls"]]}
    by_id = {call["call_id"]: (step, call) for step in steps.values() for call in step["response"]["tool_calls"]}
    taken: set[int] = set()
    found: dict[str, tuple[Step, str]] = {}
    for tool in tools:
        called = by_id.get(_attribute(tool, _IDS))
        if called is None or id(called[1]) in taken:
            called = _by_order(trace, tool, runs, steps, taken)
        if called is None:
            continue
        step, call = called
        taken.add(id(call))
        found[tool.span_id] = step, call["call_id"]
        result = _attribute(tool, _RESULTS)
        call["result"] = result if result or any(name in tool.attributes for name in _RESULTS) else None
        call["error"] = tool.error
        call["duration_ms"] = tool.duration_ms
    return found


def _by_order(
    trace: Trace, tool: Span, runs: Sequence[Run], steps: Mapping[str, Step], taken: set[int]
) -> tuple[Step, ToolCall] | None:
    around = {span.span_id for span in trace.above(tool)}
    run = next((r for r in reversed(runs) if r.agent is not None and r.agent.span_id in around), None)
    run = run or next((r for r in runs if r.agent is None), None) or runs[0] if runs else None
    before = [span for span in run.calls if span.start_ns <= tool.start_ns] if run is not None else []
    if not before:
        return None
    step = steps[before[-1].span_id]
    calls = step["response"]["tool_calls"]
    name = _attribute(tool, _NAMES) or tool.name
    for call in calls:
        if call["name"] == name and id(call) not in taken and not _attribute(tool, _IDS):
            return step, call
    made = new_tool_call(
        call_id=_attribute(tool, _IDS) or tool.span_id, name=name, arguments=_attribute(tool, _ARGUMENTS)
    )
    calls.append(made)
    return step, made


def _attribute(span: Span, names: Sequence[str]) -> str:
    return next((text(span.attributes[name]) for name in names if name in span.attributes), "")
