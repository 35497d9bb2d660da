"""Attach tool results, which agents send in later prompts, to the steps that called the tools. Pure.

A result belongs to the nearest call with its id in the conversation that the prompt continues, along the tree of
steps and within the shared prefix. If a prompt repeats the calling message (a context sent whole again), the result
belongs to the latest step that made this exact call. Otherwise it stays a message of its step: no result is attached
to a call that did not cause it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepstream.jobs.rewards.counted_feedback import unretracted
from stepstream.topics.events import Step, ToolCall
from stepstream.topics.step_contexts import shared_step


def attach_tool_results(steps: Sequence[Step]) -> list[list[ToolCall]]:
    """Return the tool calls of each step with their results. A result that is already recorded stays.

    The first of several results for one call counts. Errors stay as recorded (`attach_tool_errors` adds those that
    feedback reports): a message does not say if its tool failed.

    Args:
        steps: the trajectory's steps in order of their index; gaps are allowed.
    """
    calls = [[call.copy() for call in step["response"]["tool_calls"]] for step in steps]
    callers: dict[str, list[int]] = {}
    for position, step in enumerate(steps):
        for call in step["response"]["tool_calls"]:
            callers.setdefault(call["call_id"], []).append(position)
    if not callers:
        return calls
    positions = {step["step_index"]: position for position, step in enumerate(steps)}
    for position, step in enumerate(steps):
        repeated: dict[str, int] = {}
        for message in step["messages"]:
            for call in message["tool_calls"]:
                caller = _made_by(call, callers.get(call["call_id"], ()), position, steps)
                if caller is not None:
                    repeated[call["call_id"]] = caller
            name = message["tool_call_id"]
            if message["role"] != "tool" or name not in callers:
                continue
            caller = repeated[name] if name in repeated else _ancestor(position, callers[name], steps, positions)
            if caller is not None:
                _set_result(calls[caller], name, message["content"])
    return calls


def reported_errors(signals: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the error class of each tool call that feedback reports as failed, by its id; the newest report counts.

    Signals that earlier releases saved have no error.
    """
    ordered = sorted(signals, key=lambda signal: (signal["at"], signal["id"]))
    return {signal["call"]: signal["error"] for signal in unretracted(ordered) if signal.get("error") is not None}


def attach_tool_errors(calls: Iterable[Iterable[ToolCall]], errors: Mapping[str, str]) -> None:
    """Set the errors of `reported_errors` on the calls without an error of their own."""
    for made in calls:
        for call in made:
            if call["error"] is None:
                call["error"] = errors.get(call["call_id"])


def _made_by(call: ToolCall, callers: Sequence[int], before: int, steps: Sequence[Step]) -> int | None:
    """Return the position of the latest earlier step that made exactly this call."""
    for position in reversed(callers):
        made = steps[position]["response"]["tool_calls"]
        if position < before and any(
            (one["call_id"], one["name"], one["arguments"]) == (call["call_id"], call["name"], call["arguments"])
            for one in made
        ):
            return position
    return None


def _ancestor(position: int, callers: Sequence[int], steps: Sequence[Step], positions: dict[int, int]) -> int | None:
    """Return the position of the nearest caller whose response is in the shared part of a prompt."""
    step = steps[position]
    length = step["prompt_shared_messages"]
    while length > 0 and (index := shared_step(step)) is not None:
        above = positions.get(index)
        if above is None or above >= position:
            return None
        position, step = above, steps[above]
        if position in callers and length > step["prompt_shared_messages"] + len(step["messages"]):
            return position
        length = min(length, step["prompt_shared_messages"])
    return None


def _set_result(calls: list[ToolCall], name: str, result: str) -> None:
    """Set the result of the first call with this id that has none."""
    for call in calls:
        if call["call_id"] == name and call["result"] is None:
            call["result"] = result
            return
