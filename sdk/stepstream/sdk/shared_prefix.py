"""Find the part of a prompt that earlier steps contain, so that each step stores only new content. Pure."""

import hashlib
import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from stepstream.topics.events import Message

TRACKED_STEPS = 8
"""Number of earlier steps that a new one is compared with."""
_TOKEN_BYTES = 4


class SharedPrefix(NamedTuple):
    """The longest prefix of a prompt that an earlier step's prompt and response contain."""

    step: int | None = None
    """Index of that step; None: the step before, or nothing is shared."""
    messages: int = 0
    tokens: int = 0
    digest: str | None = None
    """SHA-256 of the shared tokens, little-endian int32; None: no tokens are shared."""
    tools: str = ""
    """Definitions of the tools offered at that step."""


class _Context(NamedTuple):
    step_index: int
    messages: list[bytes]
    tokens: bytes
    tools: str


class PrefixTracker:
    """The newest steps of one trajectory."""

    def __init__(self) -> None:
        self._contexts: deque[_Context] = deque(maxlen=TRACKED_STEPS)

    def find(self, step_index: int, messages: Sequence[Message], tokens: Sequence[int]) -> SharedPrefix:
        """Return the longest prefix shared with an earlier step; of equal ones, the newest step's."""
        digests, packed = [_message_digest(message) for message in messages], _pack(tokens)
        best, best_lengths = None, (0, 0)
        for context in reversed(list(self._contexts)):  # a copy: other threads may add steps
            if context.step_index >= step_index:
                continue
            lengths = _common_length(digests, context.messages), _common_tokens(packed, context.tokens)
            if lengths > best_lengths:
                best, best_lengths = context, lengths
        if best is None:
            return SharedPrefix()
        shared_messages, shared_tokens = best_lengths
        digest = hashlib.sha256(packed[: shared_tokens * _TOKEN_BYTES]).hexdigest() if shared_tokens else None
        index = None if best.step_index == step_index - 1 else best.step_index
        return SharedPrefix(index, shared_messages, shared_tokens, digest, best.tools)

    def add_step(
        self, step_index: int, messages: Sequence[Message], response: Message, tokens: Sequence[int], tools: str = ""
    ) -> None:
        """Add a step.

        Args:
            step_index: position in the trajectory.
            messages: its whole prompt.
            response: its response.
            tokens: ids of the whole prompt and the response; empty below fidelity `token`.
            tools: definitions of the offered tools, as JSON; empty: none.
        """
        digests = [_message_digest(message) for message in messages] + [_message_digest(response)]
        self._contexts.append(_Context(step_index, digests, _pack(tokens), tools))


def _message_digest(message: Message) -> bytes:
    """Return a digest that ignores the changes of libraries that repeat a response: outer spaces, format of JSON."""
    calls = [(call["call_id"], call["name"], _normalized(call["arguments"])) for call in message["tool_calls"]]
    content = message["content"].strip() if message["role"] == "assistant" else message["content"]
    parts = (message["role"], content, calls, message["tool_call_id"], message["name"])
    return hashlib.blake2b(orjson.dumps(parts), digest_size=16).digest()


def _normalized(arguments: str) -> str:
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments


def _pack(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def _common_length(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


def _common_tokens(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other)) // _TOKEN_BYTES
    while low < high:  # the first `low` tokens are equal, the first `high` + 1 are not
        middle = (low + high + 1) // 2
        if one[low * _TOKEN_BYTES : middle * _TOKEN_BYTES] == other[low * _TOKEN_BYTES : middle * _TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
