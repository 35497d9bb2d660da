"""The MinHash of a trajectory's text, by which near-duplicates are found without comparing texts. Pure.

Over runs of five words (letters, where words have no spaces) of what was said, in order: the new messages of each
prompt, the response and its tools' arguments. datasketch and numpy are imported when the first signature is made: most
tenants cap nothing.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from stepstream.topics.events import Step

PERMUTATIONS = 128
SHINGLE = 5
# Part of what a signature means: those made with others cannot be compared with it.
_SEED, _SCHEME = 1, "affine32"
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese are written without spaces: each letter counts as a word."""
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def signature(steps: Sequence[Step]) -> list[int]:
    """`PERMUTATIONS` 32-bit values; equal places of two signatures estimate the Jaccard similarity of their texts.

    Empty where nothing was said.
    """
    found = shingles(words(steps))
    if not found:
        return []
    minhash = _blank().copy()
    minhash.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in found])
    return [int(value) for value in minhash.hashvalues]


def minhash_of(values: Sequence[int]) -> Any:
    """A signature as datasketch's object."""
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
    """The MinHash of nothing: its permutations take half a millisecond to make."""
    from datasketch import MinHash

    return MinHash(num_perm=PERMUTATIONS, seed=_SEED, scheme=_SCHEME)


def words(steps: Sequence[Step]) -> list[str]:
    """What was said, in lower case."""
    said: list[str] = []
    for step in steps:
        for message in (*step["messages"], step["response"]):
            said += _WORDS.findall(message["content"].lower())
            for call in message["tool_calls"]:
                said += _WORDS.findall(call["arguments"].lower())
    return said


def shingles(said: Sequence[str]) -> set[str]:
    """Runs of `SHINGLE` words; a shorter text is one run."""
    if not said:
        return set()
    return {" ".join(said[start : start + SHINGLE]) for start in range(max(1, len(said) - SHINGLE + 1))}
