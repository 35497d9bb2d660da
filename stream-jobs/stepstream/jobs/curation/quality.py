"""Flag quality problems of a trajectory, for statistics and for the tenant's policy. Pure.

A flag alone does not exclude a trajectory: a policy that learns from its own work needs its failures. The tenant's
policy lists the flags that keep a trajectory out of training (`quality.keep_out`).
"""

from collections.abc import Sequence
from typing import Any

from stepstream.jobs.curation.languages import language_of
from stepstream.topics.events import Step, ToolCall, TrajectoryEnd
from stepstream.topics.step_contexts import shared_step

_LIMITS = ("length", "max_tokens", "max_output_tokens")
"""Finish reasons of a truncated response, by different model providers."""
LOOP = 4
"""Consecutive equal steps that count as a loop."""


def quality_flags(
    steps: Sequence[Step], calls: Sequence[Sequence[ToolCall]], end: TrajectoryEnd, languages: Sequence[str]
) -> list[str]:
    """Return the flags, sorted: `empty`, `looping`, `partial_failure`, `truncated`, `wrong_language:xx`.

    Args:
        steps: steps of the trajectory in order, at least one.
        calls: tool calls of each step with their results.
        end: end of the trajectory.
        languages: ISO 639-1 codes of the expected languages; empty: any.
    """
    found = set()
    if not any(_has_content(step) for step in steps):
        found.add("empty")
    if _partly_failed(steps, calls):
        found.add("partial_failure")
    if end == "truncated" or any(step["finish_reason"].lower() in _LIMITS for step in steps):
        found.add("truncated")
    if _loops(steps, calls):
        found.add("looping")
    if languages:
        language = language_of(" ".join(step["response"]["content"] for step in steps))
        if language is not None and language not in languages:
            found.add(f"wrong_language:{language}")
    return sorted(found)


def kept_out(flags: Sequence[str], keep_out: Sequence[str]) -> list[str]:
    """Return the flags that a policy keeps out of training; `wrong_language` includes every language."""
    return [flag for flag in flags if flag in keep_out or flag.partition(":")[0] in keep_out]


def _has_content(step: Step) -> bool:
    """Return True if a response has content. A sampled end-of-turn token counts: it is an action."""
    response = step["response"]
    return bool(
        response["content"].strip() or response["tool_calls"] or response["reasoning"] or step["response_token_ids"]
    )


def _partly_failed(steps: Sequence[Step], calls: Sequence[Sequence[ToolCall]]) -> bool:
    """Return True if a step or a tool failed and the last step did not."""
    failed = [
        step["error"] is not None or any(call["error"] is not None for call in step_calls)
        for step, step_calls in zip(steps, calls, strict=True)
    ]
    return any(failed[:-1]) and not failed[-1]


def _loops(steps: Sequence[Step], calls: Sequence[Sequence[ToolCall]]) -> bool:
    """Return True if `LOOP` consecutive steps make the same calls with the same results, or have the same text."""
    length, before, before_index = 0, None, -1
    for step, step_calls in zip(steps, calls, strict=True):
        action = _action(step, step_calls)
        continues = shared_step(step) in (None, before_index)
        length = length + 1 if action is not None and action == before and continues else 1
        if length >= LOOP:
            return True
        before, before_index = action, step["step_index"]
    return False


def _action(step: Step, calls: Sequence[ToolCall]) -> Any:
    if calls:
        return [(call["name"], call["arguments"], call["result"], call["error"]) for call in calls]
    return step["response"]["content"].strip() or None
