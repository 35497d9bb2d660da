"""Pack sequences of different lengths end to end, with each common prefix once, and batch padded sequences. Pure.

The sequences of a pack form a tree: they branch where their tokens differ. The pack holds the tree's runs of tokens in
depth-first order, so that a run's descendants follow it without a gap:

    a b c d e       tokens  a b c d e | f g | x y
    a b c f g       runs    (a b c) (d e) (f g) (x y)     d e and f g attend to a b c too
    x y
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stepstream.learner.data.kept_ids import KeptIds
from stepstream.learner.data.sequences import TokenSequence, joined_kept, joined_temperatures

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_MIN_SHARED = 8
"""Length of the shortest shared prefix: one more attention call costs as much as this many tokens."""


@dataclass(frozen=True, slots=True)
class Pack:
    """The input of one forward pass. A sequence's last token is only predicted and is not an input."""

    ids: Ints
    """Input tokens. Shape [length]."""
    positions: Ints
    """Position of each in its sequences. Shape [length]."""
    runs: Ints
    """Start and end of each run, and end of its descendants, in the order of the tokens. Shape [runs, 3]."""
    at: Ints
    """Inputs at which a trained token is predicted; one with two successors, or with one at two temperatures or of two
    sampling masks, occurs twice. Shape [predictions]."""
    targets: Ints
    """Predicted token of each prediction. Shape [predictions]."""
    of: Ints
    """Number of each trained token's prediction, sequence after sequence. Shape [trained tokens]."""
    temperatures: Floats | None = None
    """Temperature of each prediction; None: all 1. Shape [predictions]."""
    kept: KeptIds | None = None
    """Ids that each prediction is among; None: all of the vocabulary."""

    def paths(self) -> tuple[Ints, Ints]:
        """Return the inputs that each run attends to, its own last, run after run; and their number by run."""
        attended: list[Ints] = []
        open_runs: list[tuple[int, Ints]] = []
        for start, end, last in self.runs.tolist():
            while open_runs and open_runs[-1][0] <= start:
                open_runs.pop()
            before = open_runs[-1][1] if open_runs else np.empty(0, np.int64)
            attended.append(np.concatenate([before, np.arange(start, end)]))
            open_runs.append((last, attended[-1]))
        return np.concatenate(attended), np.array([path.size for path in attended])


def pack_batches(rows: Sequence[TokenSequence], most_tokens: int) -> list[list[int]]:
    """Return the indices of the sequences of each pack: common prefixes, at most `most_tokens` (or one sequence).

    The same sequences give the same packs, so that a rebuild adds sums in the same order.
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
    """Pack sequences of at least two tokens."""
    ids: list[Ints] = []
    positions: list[Ints] = []
    runs: list[tuple[int, int, int]] = []
    # Runs that may still get descendants: depth and index of their first token, depth and index after their last.
    open_runs: list[tuple[int, int, int, int]] = []
    at: list[Ints] = [np.empty(0, np.int64)] * len(rows)
    places, length = np.empty(0, np.int64), 0
    for index, shared in _sorted(rows):
        inputs, row = rows[index].ids[:-1], rows[index]
        while open_runs and open_runs[-1][0] >= shared:
            _, start, _, end = open_runs.pop()
            runs.append((start, end, length))
        if open_runs and open_runs[-1][2] > shared:
            # The previous run is longer than the shared prefix: split it there.
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
    temperatures, kept = joined_temperatures(rows), joined_kept(rows)
    pairs, members, of = _predictions(np.concatenate(at) << 32 | targets, temperatures, kept)
    return Pack(
        ids=np.concatenate(ids),
        positions=np.concatenate(positions),
        runs=np.array(sorted(runs)),
        at=pairs >> 32,
        targets=pairs & 0xFFFFFFFF,
        of=of,
        temperatures=None if temperatures is None else temperatures[members],
        kept=None if kept is None else kept.take(members),
    )


def _predictions(pairs: Ints, temperatures: Floats | None, kept: KeptIds | None) -> tuple[Ints, Ints, Ints]:
    """Return the distinct predictions of the trained tokens.

    Returns:
        The pair of input and target of each; the number of a trained token with it; its number, by trained token.
    """
    keys = [pairs]
    if temperatures is not None and (temperatures != temperatures[0]).any():
        keys.append(np.unique(temperatures, return_inverse=True)[1])
    if kept is not None:
        keys.append(kept.labels())
    if len(keys) == 1:
        distinct, first, of = np.unique(pairs, return_index=True, return_inverse=True)
        return distinct, first, of
    (distinct, *_), first, of = np.unique(np.stack(keys), axis=1, return_index=True, return_inverse=True)
    return distinct, first, of.reshape(-1)


def _sorted(rows: Sequence[TokenSequence]) -> list[tuple[int, int]]:
    """Return the indices of the sequences, sorted by input, each with the length shared with the previous one."""
    inputs = [row.ids[:-1] for row in rows]
    keys = [each.astype(">u4").tobytes() for each in inputs]
    order = sorted(range(len(rows)), key=lambda index: (keys[index], index))
    shared = [_common(inputs[a], inputs[b]) for a, b in pairwise(order)]
    return [
        (index, length if length >= _MIN_SHARED else 0)
        for index, length in zip(order, [0, *shared] if order else [], strict=True)
    ]


def _common(a: Ints, b: Ints) -> int:
    """Return the length of the common prefix of two sequences."""
    least = min(a.size, b.size)
    differs = a[:least] != b[:least]
    return int(differs.argmax()) if differs.any() else least


def microbatches(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Return batches of indices of sequences of similar length, at most `most_tokens` with padding (or one sequence).

    The same lengths give the same batches, so that a rebuild adds sums in the same order.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        # Sorted by length: the added sequence is the longest of its batch.
        if batches and (len(batches[-1]) + 1) * lengths[index] <= most_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
