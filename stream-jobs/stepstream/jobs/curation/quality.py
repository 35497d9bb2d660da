"""What is wrong with a trajectory as data: reasons that are kept as flags, for statistics and for policy. Pure.

A flag is no verdict: a policy that learns from its own work needs its failures, so what is kept out of training is
each tenant's policy to say (`quality.keep_out`).
"""

from collections.abc import Sequence
from typing import Any

from stepstream.jobs.curation.languages import language_of
from stepstream.topics.events import Step, ToolCall, TrajectoryEnd
from stepstream.topics.step_contexts import shared_step

_LIMITS = ("length", "max_tokens", "max_output_tokens")
"""Why a response ended that was cut, as makers of models say it, and whoever writes to Kafka passes it on."""
LOOP = 4
"""Steps in a row that do the same thing and learn nothing from it."""


def quality(
    steps: Sequence[Step], calls: Sequence[Sequence[ToolCall]], end: TrajectoryEnd, languages: Sequence[str]
) -> list[str]:
    """Reasons, sorted: `empty`, `looping`, `partial_failure`, `truncated`, `wrong_language:xx`.

    Args:
        steps: the trajectory's steps in order, at least one.
        calls: tool calls of each step, with the results known.
        end: how it ended.
        languages: ISO 639-1 codes that responses should be written in; empty: not looked at.
    """
    found = set()
    if not any(_says_something(step) for step in steps):
        found.add("empty")
    if _partly_failed(steps, calls):
        found.add("partial_failure")
    if end == "truncated" or any(step["finish_reason"].lower() in _LIMITS for step in steps):
        found.add("truncated")
    if _loops(steps, calls):
        found.add("looping")
    if languages:
        written = language_of(" ".join(step["response"]["content"] for step in steps))
        if written is not None and written not in languages:
            found.add(f"wrong_language:{written}")
    return sorted(found)


def kept_out(reasons: Sequence[str], keep_out: Sequence[str]) -> list[str]:
    """The reasons that a policy keeps out of training; `wrong_language` stands for every language."""
    return [reason for reason in reasons if reason in keep_out or reason.partition(":")[0] in keep_out]


def _says_something(step: Step) -> bool:
    """Whether a response holds anything; a sampled end-of-turn token alone is an action, which may be learned from."""
    response = step["response"]
    return bool(
        response["content"].strip() or response["tool_calls"] or response["reasoning"] or step["response_token_ids"]
    )


def _partly_failed(steps: Sequence[Step], calls: Sequence[Sequence[ToolCall]]) -> bool:
    """Whether a step or a tool failed and a later step did not."""
    failed = [
        step["error"] is not None or any(call["error"] is not None for call in made)
        for step, made in zip(steps, calls, strict=True)
    ]
    return any(failed[:-1]) and not failed[-1]


def _loops(steps: Sequence[Step], calls: Sequence[Sequence[ToolCall]]) -> bool:
    """Whether `LOOP` steps in a row make the same calls, or say the same, and what came back did not differ."""
    length, before, before_index = 0, None, -1
    for step, made in zip(steps, calls, strict=True):
        deed = _deed(step, made)
        goes_on = shared_step(step) in (None, before_index)
        length = length + 1 if deed is not None and deed == before and goes_on else 1
        if length >= LOOP:
            return True
        before, before_index = deed, step["step_index"]
    return False


def _deed(step: Step, made: Sequence[ToolCall]) -> Any:
    if made:
        return [(call["name"], call["arguments"], call["result"], call["error"]) for call in made]
    return step["response"]["content"].strip() or None
