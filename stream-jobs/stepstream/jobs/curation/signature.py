"""Compute the MinHash of a trajectory's text, to find near-duplicates without comparing texts. Pure.

It covers runs of five words (letters in scripts without spaces) of the text in order: the new messages of each prompt,
the response, and the arguments of its tool calls. datasketch and numpy are imported for the first signature only: most
tenants have no cap.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from stepstream.topics.events import Step

PERMUTATIONS = 128
SHINGLE = 5
# Signatures with another seed or scheme cannot be compared.
_SEED, _SCHEME = 1, "affine32"
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese are written without spaces: each letter counts as a word."""
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def signature(steps: Sequence[Step]) -> list[int]:
    """Return `PERMUTATIONS` 32-bit values; the share of equal values estimates the Jaccard similarity of two texts.

    Empty if there is no text.
    """
    runs = shingles(words_of(steps))
    if not runs:
        return []
    minhash = _blank().copy()
    minhash.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in runs])
    return [int(value) for value in minhash.hashvalues]


def minhash_of(values: Sequence[int]) -> Any:
    """Convert a signature to a MinHash of datasketch."""
    from datasketch import MinHash

    return MinHash(
        num_perm=PERMUTATIONS,
        seed=_SEED,
        scheme=_SCHEME,
        hashvalues=list(values),
        permutations=_blank().permutations,
    )


@cache
def _blank() -> Any:
    """Build an empty MinHash; its permutations take half a millisecond."""
    from datasketch import MinHash

    return MinHash(num_perm=PERMUTATIONS, seed=_SEED, scheme=_SCHEME)


def words_of(steps: Sequence[Step]) -> list[str]:
    """Return the words of a trajectory's text in lower case."""
    words: list[str] = []
    for step in steps:
        for message in (*step["messages"], step["response"]):
            words += _WORDS.findall(message["content"].lower())
            for call in message["tool_calls"]:
                words += _WORDS.findall(call["arguments"].lower())
    return words


def shingles(words: Sequence[str]) -> set[str]:
    """Return the runs of `SHINGLE` words; a shorter text is one run."""
    if not words:
        return set()
    return {" ".join(words[start : start + SHINGLE]) for start in range(max(1, len(words) - SHINGLE + 1))}
