"""Rebuild the context of each step of a trajectory, whose steps store only new content. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from stepstream.topics.events import Message, Step


class ContextMessage(NamedTuple):
    """One message of a context."""

    message: Message
    step_index: int | None
    """Index of the step whose response it is; None: it belongs to a prompt."""


def conversations(steps: Sequence[Step]) -> list[list[ContextMessage]]:
    """Return the fewest conversations that contain every response: one for an append-only context, more for a tree.

    A shared prefix that is missing, as after a lost step, is left out.
    """
    contexts: dict[int, list[ContextMessage]] = {}
    last_indices: list[int] = []
    for step in steps:
        index, before = step["step_index"], shared_step(step)
        shared = contexts.get(before, [])[: step["prompt_shared_messages"]] if before is not None else []
        if before in last_indices and len(shared) == len(contexts[before]):
            last_indices.remove(before)
        new = [ContextMessage(message, None) for message in step["messages"]]
        contexts[index] = [*shared, *new, ContextMessage(step["response"], index)]
        last_indices.append(index)
    return [contexts[index] for index in last_indices]


def full_prompts(steps: Sequence[Step]) -> list[list[int] | None]:
    """Return the token ids of each step's whole prompt; None: unknown."""
    contexts: dict[int, list[int]] = {}
    prompts: list[list[int] | None] = []
    for step in steps:
        shared, before = step["prompt_shared_tokens"], shared_step(step)
        context = contexts.get(before, []) if before is not None and shared else []
        if step["fidelity"] != "token" or not 0 <= shared <= len(context):
            prompts.append(None)
            continue
        prompt = context[:shared] + step["prompt_token_ids"]
        contexts[step["step_index"]] = prompt + step["response_token_ids"]
        prompts.append(prompt)
    return prompts


def shared_step(step: Step) -> int | None:
    """Return the index of the step whose context this step continues; None: it begins a conversation."""
    if not step["prompt_shared_tokens"] and not step["prompt_shared_messages"]:
        return None
    index = step["prompt_shared_step"]
    return step["step_index"] - 1 if index is None else index


def is_empty_failure(step: Step) -> bool:
    """Return True if the step's model call failed and returned no content."""
    response = step["response"]
    return step["error"] is not None and not (response["content"] or response["tool_calls"] or response["reasoning"])
