"""Attaches tools' results, which agents send back in later prompts, to the steps that called the tools. Pure.

A result belongs to the nearest call of its id in the conversation that the prompt continues: along the tree of steps,
as far as the prompt repeats it; or, where a prompt repeats the calling message itself (a context that was sent whole
again), to the latest step that made this very call. Without either, it stays a message of its step: never a result
with a call that did not cause it.
"""

from collections.abc import Sequence

from stepstream.topics.events import Step, ToolCall
from stepstream.topics.step_contexts import shared_step


def attach(steps: Sequence[Step]) -> list[list[ToolCall]]:
    """Tool calls of each step with the results that came back; a result on record already stays.

    Of several results for one call the first in the order of steps counts. Errors are told as they were recorded, for
    a message does not say whether its tool failed.

    Args:
        steps: the trajectory's steps in order of their index; gaps are allowed.
    """
    calls = [[call.copy() for call in step["response"]["tool_calls"]] for step in steps]
    callers: dict[str, list[int]] = {}
    for place, step in enumerate(steps):
        for call in step["response"]["tool_calls"]:
            callers.setdefault(call["call_id"], []).append(place)
    if not callers:
        return calls
    places = {step["step_index"]: place for place, step in enumerate(steps)}
    for place, step in enumerate(steps):
        repeated: dict[str, int] = {}
        for message in step["messages"]:
            for call in message["tool_calls"]:
                caller = _made_by(call, callers.get(call["call_id"], ()), place, steps)
                if caller is not None:
                    repeated[call["call_id"]] = caller
            name = message["tool_call_id"]
            if message["role"] != "tool" or name not in callers:
                continue
            caller = repeated[name] if name in repeated else _ancestor(place, callers[name], steps, places)
            if caller is not None:
                _answer(calls[caller], name, message["content"])
    return calls


def _made_by(call: ToolCall, callers: Sequence[int], before: int, steps: Sequence[Step]) -> int | None:
    """The latest earlier step that made exactly this call."""
    for place in reversed(callers):
        made = steps[place]["response"]["tool_calls"]
        if place < before and any(
            (one["call_id"], one["name"], one["arguments"]) == (call["call_id"], call["name"], call["arguments"])
            for one in made
        ):
            return place
    return None


def _ancestor(place: int, callers: Sequence[int], steps: Sequence[Step], places: dict[int, int]) -> int | None:
    """The nearest caller whose response the shared part of a prompt holds."""
    step = steps[place]
    length = step["prompt_shared_messages"]
    while length > 0 and (index := shared_step(step)) is not None:
        above = places.get(index)
        if above is None or above >= place:
            return None
        place, step = above, steps[above]
        if place in callers and length > step["prompt_shared_messages"] + len(step["messages"]):
            return place
        length = min(length, step["prompt_shared_messages"])
    return None


def _answer(calls: list[ToolCall], name: str, result: str) -> None:
    """Gives a result to the first call of this id that has none."""
    for call in calls:
        if call["call_id"] == name and call["result"] is None:
            call["result"] = result
            return
