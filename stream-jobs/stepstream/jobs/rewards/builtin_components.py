"""Measure values on the steps themselves: components with `builtin`. Pure."""

import json
import math
import re
from collections.abc import Sequence

from stepstream.jobs.rewards.spec import Builtin
from stepstream.topics.events import Step, ToolCall

MALFORMED = frozenset({"unknown_tool", "invalid_arguments"})
"""Errors of a tool call that mean that the call itself is malformed; any other means that its tool failed."""

_MARKUP = re.compile(r"<tool_call>|<function=|<\|tool_call|<\|python_tag\|>|\[TOOL_CALLS\]")
"""Beginnings of tool calls in the syntax of models; text that contains one is a call that could not be parsed."""
_SHARES = frozenset({"valid_calls", "certainty"})
_QUESTION = ("?", "？", "؟")


def is_malformed(call: ToolCall) -> bool:
    """Return True if no tool could accept the call: it has no name, or its arguments are not a JSON object.

    A call whose tool returned an error is not malformed.
    """
    if not call["name"].strip() or call["error"] in MALFORMED:
        return True
    try:
        return not isinstance(json.loads(call["arguments"] or "{}"), dict)
    except (ValueError, RecursionError):  # a model that repeats itself writes thousands of brackets
        return True


def count_malformed_calls(step: Step) -> int:
    """Count the malformed tool calls of a response, and those that remained text because they could not be parsed."""
    response = step["response"]
    return sum(map(is_malformed, response["tool_calls"])) + len(_MARKUP.findall(response["content"]))


def measure(name: Builtin, step: Step, reported_malformed: int) -> float | None:
    """Return the value of one step; None: it has none.

    Args:
        name: the built-in component.
        step: the step.
        reported_malformed: malformed calls of this step that feedback reports.
    """
    calls = step["response"]["tool_calls"]
    match name:
        case "errors":
            return float(step["error"] is not None)
        case "tool_errors":
            return float(sum(call["error"] is not None for call in calls))
        case "malformed_calls":
            return float(_malformed(step, reported_malformed))
        case "valid_calls":
            wrong = _malformed(step, reported_malformed)
            attempted = max(len(calls), wrong)
            return 1 - wrong / attempted if attempted else None
        case "seconds":
            return max(0.0, step["duration_ms"] or 0.0) / 1000
        case "cost_usd":
            return max(0.0, step["cost_usd"] or 0.0)
        case "response_tokens":
            return float(len(step["response_token_ids"]))
        case "certainty":
            logprobs = step["response_logprobs"]
            return math.exp(math.fsum(logprobs) / len(logprobs)) if logprobs else None
        case "clarifying_questions":
            return float(not calls and step["response"]["content"].rstrip().endswith(_QUESTION))


def aggregate_steps(name: Builtin, values: Sequence[float | None]) -> float | None:
    """Return the value of a trajectory: the sum over its steps, or for a share the mean of the steps that have one."""
    known = [value for value in values if value is not None]
    if name not in _SHARES:
        return math.fsum(known)
    return math.fsum(known) / len(known) if known else None


def _malformed(step: Step, reported: int) -> int:
    # Reported and detected calls may be the same ones.
    return max(count_malformed_calls(step), reported)
