"""Add to a step what only a poorer record of the same model call knows. Pure."""

from stepstream.topics.events import Step, ToolCall


def merge_records(step: Step, poorer: Step) -> Step:
    """Return the step with the poorer record's results, errors and durations of tools, its cost and its end."""
    known = {call["call_id"]: call for call in poorer["response"]["tool_calls"]}
    calls = [_merge_calls(call, known.get(call["call_id"])) for call in step["response"]["tool_calls"]]
    return {
        **step,
        "response": {**step["response"], "tool_calls": calls},
        "cost_usd": poorer["cost_usd"] if step["cost_usd"] is None else step["cost_usd"],
        "end": poorer["end"] if step["end"] == "open" else step["end"],
    }


def _merge_calls(call: ToolCall, poorer: ToolCall | None) -> ToolCall:
    if poorer is None:
        return call
    return {
        **call,
        "result": poorer["result"] if call["result"] is None else call["result"],
        "error": poorer["error"] if call["error"] is None else call["error"],
        "duration_ms": poorer["duration_ms"] if call["duration_ms"] is None else call["duration_ms"],
    }
