"""Values that are measured on the steps themselves: components with `builtin`. Pure."""

import json
import math
import re
from collections.abc import Sequence

from stepstream.jobs.rewards.spec import Builtin
from stepstream.topics.events import Step, ToolCall

MALFORMED = frozenset({"unknown_tool", "invalid_arguments"})
"""Errors of a tool call that tell that the call itself is malformed; any other tells that its tool failed."""

_MARKUP = re.compile(r"<tool_call>|<function=|<\|tool_call|<\|python_tag\|>|\[TOOL_CALLS\]")
"""How models begin a call; where it stands in the text of a response, nobody could read it as one."""
_SHARES = frozenset({"valid_calls", "certainty"})
_QUESTION = ("?", "？", "؟")


def malformed(call: ToolCall) -> bool:
    """Whether the agent wrote a call that no tool could have taken: no name, or arguments that are no JSON object.

    A call whose tool answered with an error is not malformed: failing at an honest attempt is another thing.
    """
    if not call["name"].strip() or call["error"] in MALFORMED:
        return True
    try:
        return not isinstance(json.loads(call["arguments"] or "{}"), dict)
    except (ValueError, RecursionError):  # a model that repeats itself writes thousands of brackets
        return True


def malformed_calls(step: Step) -> int:
    """Malformed tool calls of a response, with those that stayed text because they could not be read."""
    response = step["response"]
    return sum(map(malformed, response["tool_calls"])) + len(_MARKUP.findall(response["content"]))


def measured(name: Builtin, step: Step, told_malformed: int) -> float | None:
    """The value of one step; None where it has none.

    Args:
        name: what is measured.
        step: the step.
        told_malformed: malformed calls of this step of which feedback told.
    """
    calls = step["response"]["tool_calls"]
    match name:
        case "errors":
            return float(step["error"] is not None)
        case "tool_errors":
            return float(sum(call["error"] is not None for call in calls))
        case "malformed_calls":
            return float(_malformed(step, told_malformed))
        case "valid_calls":
            wrong = _malformed(step, told_malformed)
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


def over_steps(name: Builtin, values: Sequence[float | None]) -> float | None:
    """The value of a whole trajectory: the sum of its steps', or the mean of those that have one, for a share."""
    known = [value for value in values if value is not None]
    if name not in _SHARES:
        return math.fsum(known)
    return math.fsum(known) / len(known) if known else None


def _malformed(step: Step, told: int) -> int:
    # What is told and what is seen may be the same calls.
    return max(malformed_calls(step), told)
