"""The whole prompts of a trajectory, whose steps keep only what is new in each. Pure.

Rebuild the context of each step of a trajectory.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stepstream.topics.events import Message, Step


def shared_step(step: Step) -> int | None:
    """Index of the step whose context a step continues; None: it begins a conversation of its own."""
    if not step["prompt_shared_tokens"] and not step["prompt_shared_messages"]:
        return None
    named = step["prompt_shared_step"]
    return step["step_index"] - 1 if named is None else named


def failed(step: Step) -> bool:
    """Whether a step is a call that failed and left nothing that could have been captured."""
    response = step["response"]
    return step["error"] is not None and not (response["content"] or response["tool_calls"] or response["reasoning"])


class Said(NamedTuple):
    """One message of a context."""

    message: Message
    step_index: int | None
    """The step whose response it is; None: it was given to the agent."""


def continued(step: Step) -> int | None:
    """Index of the step whose context a step continues; None: it begins a conversation."""
    if not step["prompt_shared_tokens"] and not step["prompt_shared_messages"]:
        return None
    named = step["prompt_shared_step"]
    return step["step_index"] - 1 if named is None else named


def conversations(steps: Sequence[Step]) -> list[list[Said]]:
    """The conversations that together hold every response: one for an append-only context, more for a tree.

    A shared part that is not there, as after a lost step, is left out.
    """
    contexts: dict[int, list[Said]] = {}
    ends: list[int] = []
    for step in steps:
        index, before = step["step_index"], continued(step)
        shared = contexts.get(before, [])[: step["prompt_shared_messages"]] if before is not None else []
        if before in ends and len(shared) == len(contexts[before]):
            ends.remove(before)
        new = [Said(message, None) for message in step["messages"]]
        contexts[index] = [*shared, *new, Said(step["response"], index)]
        ends.append(index)
    return [contexts[index] for index in ends]


def whole_prompts(steps: Sequence[Step]) -> list[list[int] | None]:
    """Token ids of each step's whole prompt; None: not known."""
    known: dict[int, list[int]] = {}
    prompts: list[list[int] | None] = []
    for step in steps:
        shared, before = step["prompt_shared_tokens"], continued(step)
        context = known.get(before, []) if before is not None and shared else []
        if step["fidelity"] != "token" or not 0 <= shared <= len(context):
            prompts.append(None)
            continue
        prompt = context[:shared] + step["prompt_token_ids"]
        known[step["step_index"]] = prompt + step["response_token_ids"]
        prompts.append(prompt)
    return prompts
