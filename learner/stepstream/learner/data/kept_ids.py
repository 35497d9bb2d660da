"""Hold the sampling masks of training sequences: the vocabulary ids that each trained token was drawn from. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeptIds:
    """The ids that truncation or a grammar left to some tokens; the learner gives the others no probability."""

    counts: Ints
    """Number of ids of each token; 0: all of the vocabulary. Shape [tokens]."""
    ids: npt.NDArray[np.int32]
    """Ids of all tokens, concatenated. Shape [sum of counts]."""

    @classmethod
    def join(cls, parts: Sequence[tuple["KeptIds | None", int]]) -> "KeptIds | None":
        """Return the ids of all tokens of the parts, each given with its number of tokens; None: all parts are None."""
        if all(kept is None for kept, _ in parts):
            return None
        known = [
            cls(np.zeros(tokens, np.int64), np.empty(0, np.int32)) if kept is None else kept for kept, tokens in parts
        ]
        return cls(np.concatenate([each.counts for each in known]), np.concatenate([each.ids for each in known]))

    @property
    def nbytes(self) -> int:
        """Memory of its arrays."""
        return self.counts.nbytes + self.ids.nbytes

    def take(self, tokens: Ints) -> "KeptIds":
        """Return the ids of some tokens, in the order of their numbers `tokens`."""
        counts = self.counts[tokens]
        starts, ends = (self.counts.cumsum() - self.counts)[tokens], counts.cumsum()
        places = np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())
        return KeptIds(counts, self.ids[places])

    def lack(self, chosen: Ints) -> npt.NDArray[np.bool_]:
        """Return True for each token whose ids lack the one that was chosen. Shape [tokens]."""
        token = np.repeat(np.arange(self.counts.size), self.counts)
        found = np.bincount(token[self.ids == chosen[token]], minlength=self.counts.size) > 0
        return (self.counts > 0) & ~found

    def labels(self) -> Ints:
        """Return a number for each token, equal for tokens of equal ids. Shape [tokens]."""
        known: dict[bytes, int] = {}
        parts = np.split(self.ids, self.counts.cumsum())[:-1]
        return np.array([known.setdefault(part.tobytes(), len(known)) for part in parts], np.int64)
