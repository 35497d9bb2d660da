"""Hold training sequences as arrays of tokens, and the limits that a model and its learner set for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepstream.learner.data.kept_ids import KeptIds
from stepstream.learner.data.requirements import STRICTEST, Requirements
from stepstream.learner.data.reward_shaping import Discounting

UNVERSIONED = -1
"""Replaces a policy version where no policy is known to have sampled the token."""


class Invalid(Exception):
    """A labelled trajectory that contradicts itself or the model; the message names the place, without content."""


@dataclass(frozen=True, slots=True)
class ResponseSpan:
    """Text of a conversation as the tokens of one training sequence."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int, int]]
    """For each trained response: its first token, one past its last, and its step's index."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the model and requirements of its learner."""

    model: str
    vocabulary: int
    """Number of token ids; every id is below it."""
    max_length: int
    """Longest sequence in tokens."""
    discounting: Discounting = field(default_factory=Discounting)
    """How the learner sums rewards; default: not at all, so any shaping is accepted."""
    takes_single: bool = False
    """True if an attempt without a group is trained on by itself."""
    requirements: Requirements = STRICTEST
    """Requirements of the learner's objective."""
    response_tokens: Callable[[str], Sequence[int]] | None = None
    """Tokenizes a demonstrated response; gives no tokens for one that the chat template cannot render. None:
    demonstrations are not used."""
    conversation_sequences: Callable[[Mapping[str, Any]], Sequence[ResponseSpan]] | None = None
    """Tokenizes a Conversation; gives no sequences for one that the chat template cannot render. None: text is not
    trained on."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One training sequence, cut after its last trained token."""

    ids: npt.NDArray[np.int64]
    """All tokens. Shape [length]."""
    trained: npt.NDArray[np.int64]
    """Positions of the trained tokens, rising, each at least 1. Shape [trained]."""
    logprobs: npt.NDArray[np.float32]
    """Behaviour log-probability of each trained token; NaN: demonstrated, or known as text. Shape [trained]."""
    versions: npt.NDArray[np.int64]
    """Policy version of each trained token, or `UNVERSIONED`; a demonstration has that of the response it replaces.
    Shape [trained]."""
    steps: npt.NDArray[np.int64]
    """Index in the attempt's credit of each trained token's step. Shape [trained]."""
    temperatures: npt.NDArray[np.float32] | None = None
    """Temperature at which each trained token was sampled, and at which it is scored; None: all 1. Shape [trained]."""
    kept: KeptIds | None = None
    """Ids that each trained token was drawn from, and among which it is scored; None: all of the vocabulary."""

    @property
    def size_bytes(self) -> int:
        """Memory of its arrays."""
        arrays = (self.ids, self.trained, self.logprobs, self.versions, self.steps, self.temperatures, self.kept)
        return sum(array.nbytes for array in arrays if array is not None)

    def select(self, mask: npt.NDArray[np.bool_]) -> "TokenSequence":
        """Return the sequence with only the trained tokens of the mask, which has the shape [trained]."""
        trained = self.trained[mask]
        return TokenSequence(
            ids=self.ids[: int(trained[-1]) + 1 if trained.size else 0],
            trained=trained,
            logprobs=self.logprobs[mask],
            versions=self.versions[mask],
            steps=self.steps[mask],
            temperatures=None if self.temperatures is None else self.temperatures[mask],
            kept=None if self.kept is None else self.kept.take(np.flatnonzero(mask)),
        )


def joined_temperatures(rows: Sequence[TokenSequence]) -> npt.NDArray[np.float32] | None:
    """Return the temperature of each trained token, row after row; None: all 1. Shape [trained tokens]."""
    if all(row.temperatures is None for row in rows):
        return None
    return np.concatenate(
        [np.ones(row.trained.size, np.float32) if row.temperatures is None else row.temperatures for row in rows]
    )


def joined_kept(rows: Sequence[TokenSequence]) -> KeptIds | None:
    """Return the ids that each trained token was drawn from, row after row; None: all of the vocabulary."""
    return KeptIds.join([(row.kept, row.trained.size) for row in rows])


def is_sampled(record: Mapping[str, Any]) -> bool:
    """Return True if a LabeledTrajectory has token ids and behaviour log-probabilities of all its responses."""
    return bool(record["fidelity"] == "token")
