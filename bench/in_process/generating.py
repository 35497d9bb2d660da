"""Play attempts through the inference engine's batch in this thread."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

import torch

from in_process.conversation import Conversation, Renderer
from stepstream.services.inference.continuous_batch import Batch, Generation
from stepstream.services.inference.engine import TokenChunk

MAX_TOKENS = 24
"""Tokens of one response, as `fleet.max_tokens`."""


@torch.inference_mode()
def play(batch: Batch, conversations: Sequence[Conversation]) -> None:
    """Play all attempts to their ends, as many at once as the batch takes."""
    waiting = deque(conversations)
    ended: list[tuple[Conversation, TokenChunk]] = []

    def generation(conversation: Conversation) -> Generation:
        return Generation(
            conversation.prompt,
            conversation.sampling(MAX_TOKENS),
            lambda chunk: ended.append((conversation, chunk)),
        )

    while waiting or batch.running:
        joining = [generation(waiting.popleft()) for _ in range(min(batch.free, len(waiting)))]
        if joining:
            batch.join(joining)
        batch.step()
        for conversation, chunk in ended:
            if conversation.respond(chunk):
                waiting.append(conversation)
        ended.clear()


def evaluate(batch: Batch, renderer: Renderer, tasks: Iterable[str], name: str) -> float:
    """Return the share of tasks that one attempt each solves at temperature 1; `name` seeds the draws."""
    conversations = [
        Conversation(task, "", f"{name}/{number}", 0, renderer, split="eval") for number, task in enumerate(tasks)
    ]
    play(batch, conversations)
    return sum(conversation.outcome == 1.0 for conversation in conversations) / len(conversations)


def held_out(renderer: Renderer, count: int) -> list[str]:
    """Return the first `count` held-out tasks."""
    return list(islice(renderer.environment.tasks(0, "eval"), count))
