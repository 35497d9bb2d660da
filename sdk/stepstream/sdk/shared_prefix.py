"""Find the part of a prompt that earlier steps contain, so that each step stores only new content. Pure."""

import hashlib
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
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
    """Digest of the tools offered at that step; empty: none."""


@dataclass(frozen=True)
class PrefixDigest:
    """Digests of one step's prompt and response, of constant size, for a process that continues its trajectory.

    A later prompt shares all messages (or tokens) of the step, or none: their digests are of the whole.
    """

    step_index: int
    messages: int = 0
    messages_digest: str = ""
    tokens: int = 0
    """Number of tokens; 0 below fidelity `token`."""
    tokens_digest: str = ""
    """SHA-256 of the tokens, little-endian int32."""
    tools: str = ""

    def common_length(self, digests: Sequence[bytes], packed: bytes) -> tuple[int, int]:
        """Return how many messages and tokens of a prompt are those of the step."""
        shares_messages = _digest_of(digests[: self.messages]) == self.messages_digest
        shares_tokens = _sha256(packed[: self.tokens * _TOKEN_BYTES]) == self.tokens_digest
        return self.messages if shares_messages else 0, self.tokens if shares_tokens else 0


class _Context(NamedTuple):
    step_index: int
    messages: list[bytes]
    packed: bytes
    tools: str

    def common_length(self, digests: Sequence[bytes], packed: bytes) -> tuple[int, int]:
        return _common_length(digests, self.messages), _common_tokens(packed, self.packed)

    def digest(self) -> PrefixDigest:
        return PrefixDigest(
            self.step_index,
            len(self.messages),
            _digest_of(self.messages),
            len(self.packed) // _TOKEN_BYTES,
            _sha256(self.packed),
            self.tools,
        )


class PrefixTracker:
    """The newest steps of one trajectory."""

    def __init__(self, newest: PrefixDigest | None = None) -> None:
        """`newest`: the newest step of a trajectory that another process began."""
        self._contexts: deque[_Context | PrefixDigest] = deque([] if newest is None else [newest], TRACKED_STEPS)

    def find(self, step_index: int, messages: Sequence[Message], tokens: Sequence[int]) -> SharedPrefix:
        """Return the longest prefix shared with an earlier step; of equal ones, the newest step's."""
        digests, packed = [_message_digest(message) for message in messages], _pack(tokens)
        best, best_lengths = None, (0, 0)
        for context in reversed(list(self._contexts)):  # a copy: other threads may add steps
            if context.step_index >= step_index:
                continue
            lengths = context.common_length(digests, packed)
            if lengths > best_lengths:
                best, best_lengths = context, lengths
        if best is None:
            return SharedPrefix()
        shared_messages, shared_tokens = best_lengths
        digest = _sha256(packed[: shared_tokens * _TOKEN_BYTES]) if shared_tokens else None
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
            tools: `tools_digest` of the offered tools.
        """
        digests = [_message_digest(message) for message in messages] + [_message_digest(response)]
        self._contexts.append(_Context(step_index, digests, _pack(tokens), tools))

    def newest(self) -> PrefixDigest | None:
        """Return the digest of the newest step; None: no step."""
        contexts = list(self._contexts)  # a copy: other threads may add steps
        newest = max(contexts, key=lambda context: context.step_index, default=None)
        return newest.digest() if isinstance(newest, _Context) else newest

    def compact(self) -> None:
        """Keep only the digest of the newest step: 200 bytes instead of its messages and tokens."""
        newest = self.newest()
        if newest is not None:
            self._contexts = deque([newest], TRACKED_STEPS)


def tools_digest(definitions: str) -> str:
    """Return the digest of tool definitions as JSON; empty: no tools."""
    return _sha256(definitions.encode()) if definitions else ""


def _digest_of(digests: Sequence[bytes]) -> str:
    return hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
