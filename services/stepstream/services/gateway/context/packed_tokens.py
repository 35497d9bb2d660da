"""Token ids packed as little-endian int32: compact to remember, quick to compare, and what their digest is taken of."""

import struct
from collections.abc import Sequence
from hashlib import sha256

WIDTH = 4


def pack(token_ids: Sequence[int]) -> bytes:
    """Token ids as bytes.

    Raises:
        TypeError, struct.error: something among them is not a 32-bit integer.
    """
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


def shared_tokens(prompt: bytes, before: bytes) -> int:
    """How many leading tokens of `prompt` are exactly those of `before` (both packed)."""
    if prompt.startswith(before):
        return len(before) // WIDTH
    low, high = 0, min(len(prompt), len(before)) // WIDTH
    while low < high:  # the longest equal prefix, by halving
        middle = (low + high + 1) // 2
        if prompt[: middle * WIDTH] == before[: middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low


def digest(packed: bytes, tokens: int) -> str:
    """The digest of the first `tokens` tokens, as `stepstream.topics.ids.token_digest` gives it."""
    return sha256(packed[: tokens * WIDTH]).hexdigest()


def two_digests(packed: bytes, tokens: int) -> tuple[str, str]:
    """The digests of the first `tokens` tokens and of all, in one pass."""
    state = sha256(packed[: tokens * WIDTH])
    first = state.hexdigest()
    state.update(packed[tokens * WIDTH :])
    return first, state.hexdigest()
