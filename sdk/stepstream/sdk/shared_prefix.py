"""How much of a prompt earlier steps hold already, so that each step stores only what is new. Pure."""

import hashlib
import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from stepstream.topics.events import Message

REMEMBERED = 8
"""Steps that a new one is compared with."""
_WIDTH = 4


class SharedPrefix(NamedTuple):
    """The beginning of a prompt that a step's prompt and response hold."""

    step: int | None = None
    """Index of that step; None: the step before, or nothing is shared."""
    messages: int = 0
    tokens: int = 0
    digest: str | None = None
    """SHA-256 of the shared tokens, as the protocol asks."""
    tools: str = ""
    """Definitions of the tools that were offered at that step."""


class _Context(NamedTuple):
    step_index: int
    messages: list[bytes]
    tokens: bytes
    tools: str


class PrefixTracker:
    """The newest steps of one trajectory."""

    def __init__(self) -> None:
        self._contexts: deque[_Context] = deque(maxlen=REMEMBERED)

    def find(self, step_index: int, messages: Sequence[Message], tokens: Sequence[int]) -> SharedPrefix:
        """What the earlier step with the most in common holds of a prompt; of equal ones, the newest."""
        links, packed = [_link(message) for message in messages], _pack(tokens)
        best, length, ids = None, 0, 0
        for context in reversed(list(self._contexts)):  # another thread may add to them meanwhile
            if context.step_index >= step_index:
                continue
            found = _common(links, context.messages), _common_tokens(packed, context.tokens)
            if found > (length, ids):
                best, (length, ids) = context, found
        if best is None:
            return SharedPrefix()
        digest = hashlib.sha256(packed[: ids * _WIDTH]).hexdigest() if ids else None
        return SharedPrefix(
            None if best.step_index == step_index - 1 else best.step_index, length, ids, digest, best.tools
        )

    def remember(
        self, step_index: int, messages: Sequence[Message], response: Message, tokens: Sequence[int], tools: str = ""
    ) -> None:
        """Keeps a step.

        Args:
            step_index: of the step.
            messages: of its whole prompt.
            response: what was answered.
            tokens: ids of the whole prompt and the response; empty below fidelity `token`.
            tools: definitions of those that were offered, as JSON; empty: none.
        """
        links = [_link(message) for message in messages] + [_link(response)]
        self._contexts.append(_Context(step_index, links, _pack(tokens), tools))


def _link(message: Message) -> bytes:
    """What makes two messages the same: libraries change spaces and the looks of JSON when they repeat a response."""
    calls = [(call["call_id"], call["name"], _looks(call["arguments"])) for call in message["tool_calls"]]
    content = message["content"].strip() if message["role"] == "assistant" else message["content"]
    said = (message["role"], content, calls, message["tool_call_id"], message["name"])
    return hashlib.blake2b(orjson.dumps(said), digest_size=16).digest()


def _looks(arguments: str) -> str:
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments


def _pack(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


def _common_tokens(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other)) // _WIDTH
    while low < high:  # equal up to `low`, unequal beyond `high`
        middle = (low + high + 1) // 2
        if one[low * _WIDTH : middle * _WIDTH] == other[low * _WIDTH : middle * _WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low
