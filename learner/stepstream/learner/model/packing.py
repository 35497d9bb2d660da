"""Ragged sequences laid end to end, each shared beginning once. Pure.

The sequences of a pack form a tree: they branch where their tokens differ. The pack holds the tree's runs of tokens in
depth-first order, so that a run's descendants follow it without a gap:

    a b c d e       tokens  a b c d e | f g | x y
    a b c f g       runs    (a b c) (d e) (f g) (x y)     d e and f g attend to a b c too
    x y

Which training sequences share a forward pass where they have to be padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stepstream.learner.data.sequences import TokenSequence

Ints = npt.NDArray[np.int64]

_LEAST_SHARED = 8
"""Beginnings shorter than this are not shared: an attention call more costs as much as these tokens."""


@dataclass(frozen=True, slots=True)
class Pack:
    """What one forward pass computes. A sequence's last token is only predicted and is no input."""

    ids: Ints
    """Input tokens. Shape [length]."""
    positions: Ints
    """Position of each in its sequences. Shape [length]."""
    runs: Ints
    """Start and end of each run, and end of its descendants, in the order of the tokens. Shape [runs, 3]."""
    at: Ints
    """Inputs at which something trained is predicted; one with two successors is there twice. Shape [predictions]."""
    targets: Ints
    """What is to be predicted there. Shape [predictions]."""
    of: Ints
    """Which prediction each trained token is, sequence after sequence. Shape [trained tokens]."""

    def paths(self) -> tuple[Ints, Ints]:
        """For each run the inputs that it attends to, its own last, one run after the other; and their numbers."""
        found: list[Ints] = []
        open_runs: list[tuple[int, Ints]] = []
        for start, end, last in self.runs.tolist():
            while open_runs and open_runs[-1][0] <= start:
                open_runs.pop()
            before = open_runs[-1][1] if open_runs else np.empty(0, np.int64)
            found.append(np.concatenate([before, np.arange(start, end)]))
            open_runs.append((last, found[-1]))
        return np.concatenate(found), np.array([path.size for path in found])


def pack_batches(rows: Sequence[TokenSequence], most_tokens: int) -> list[list[int]]:
    """Indices of the sequences that share a pack: those that begin alike, with at most `most_tokens` (or one alone).

    The same sequences give the same packs, so that sums are added in the same order when a version is rebuilt.
    """
    batches: list[list[int]] = []
    room = 0
    for index, shared in _sorted(rows):
        length = rows[index].ids.size - 1
        if batches and length - shared <= room:
            batches[-1].append(index)
            room -= length - shared
        else:
            batches.append([index])
            room = most_tokens - length
    return batches


def pack(rows: Sequence[TokenSequence]) -> Pack:
    """Packs sequences of at least two tokens."""
    ids: list[Ints] = []
    positions: list[Ints] = []
    runs: list[tuple[int, int, int]] = []
    # Runs that may still get descendants: depth and place of their first token, depth and place after their last.
    open_runs: list[tuple[int, int, int, int]] = []
    at: list[Ints] = [np.empty(0, np.int64)] * len(rows)
    places, length = np.empty(0, np.int64), 0
    for index, shared in _sorted(rows):
        inputs, row = rows[index].ids[:-1], rows[index]
        while open_runs and open_runs[-1][0] >= shared:
            _, start, _, end = open_runs.pop()
            runs.append((start, end, length))
        if open_runs and open_runs[-1][2] > shared:
            # The run before goes on beyond what is shared: what is left of it is a run of its own.
            first, start, _, end = open_runs.pop()
            middle = start + shared - first
            runs.append((middle, end, length))
            open_runs.append((first, start, shared, middle))
        fresh = np.arange(length, length + inputs.size - shared)
        if fresh.size:
            open_runs.append((shared, length, inputs.size, length + fresh.size))
        places = np.concatenate([places[:shared], fresh])
        ids.append(inputs[shared:])
        positions.append(np.arange(shared, inputs.size))
        at[index] = places[row.trained - 1]
        length += fresh.size
    runs += [(start, end, length) for _, start, _, end in open_runs]
    targets = np.concatenate([row.ids[row.trained] for row in rows])
    pairs, of = np.unique(np.concatenate(at) << 32 | targets, return_inverse=True)
    return Pack(
        ids=np.concatenate(ids),
        positions=np.concatenate(positions),
        runs=np.array(sorted(runs)),
        at=pairs >> 32,
        targets=pairs & 0xFFFFFFFF,
        of=of,
    )


def _sorted(rows: Sequence[TokenSequence]) -> list[tuple[int, int]]:
    """Indices of the sequences in order of their inputs, each with how many of these it shares with the one before."""
    inputs = [row.ids[:-1] for row in rows]
    keys = [each.astype(">u4").tobytes() for each in inputs]
    order = sorted(range(len(rows)), key=lambda index: (keys[index], index))
    shared = [_common(inputs[a], inputs[b]) for a, b in pairwise(order)]
    return [
        (index, length if length >= _LEAST_SHARED else 0)
        for index, length in zip(order, [0, *shared] if order else [], strict=True)
    ]


def _common(a: Ints, b: Ints) -> int:
    """Length of the beginning that two sequences share."""
    least = min(a.size, b.size)
    differs = a[:least] != b[:least]
    return int(differs.argmax()) if differs.any() else least


def microbatches(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Indices of sequences of like length, together at most `most_tokens` with padding (or one alone).

    The same lengths give the same split, so that sums are added in the same order when a version is rebuilt.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        # Sorted: the newcomer is the longest of its batch.
        if batches and (len(batches[-1]) + 1) * lengths[index] <= most_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
