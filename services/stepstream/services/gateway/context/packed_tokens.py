"""Pack token ids as little-endian int32: compact, quick to compare, and the bytes that digests are taken of. Pure."""

import struct
from collections.abc import Sequence
from hashlib import sha256

WIDTH = 4
"""Bytes per token."""


def pack(token_ids: Sequence[int]) -> bytes:
    """Return token ids as bytes.

    Raises:
        TypeError, struct.error: a value is not a 32-bit integer.
    """
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


def unpack(packed: bytes) -> tuple[int, ...]:
    """Return packed token ids."""
    return struct.unpack(f"<{len(packed) // WIDTH}i", packed)


def shared_tokens(prompt: bytes, earlier: bytes) -> int:
    """Return the number of leading tokens in which two packed sequences agree."""
    if prompt.startswith(earlier):
        return len(earlier) // WIDTH
    low, high = 0, min(len(prompt), len(earlier)) // WIDTH
    while low < high:  # binary search for the longest equal prefix
        middle = (low + high + 1) // 2
        if prompt[: middle * WIDTH] == earlier[: middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low


def digest(packed: bytes, tokens: int) -> str:
    """Return the digest of the first `tokens` tokens, equal to `stepstream.topics.ids.token_digest`."""
    return sha256(packed[: tokens * WIDTH]).hexdigest()


def two_digests(packed: bytes, tokens: int) -> tuple[str, str]:
    """Return the digests of the first `tokens` tokens and of all, in one pass."""
    state = sha256(packed[: tokens * WIDTH])
    first = state.hexdigest()
    state.update(packed[tokens * WIDTH :])
    return first, state.hexdigest()
