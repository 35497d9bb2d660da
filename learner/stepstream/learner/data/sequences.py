"""Training sequences as arrays of tokens, and what a model and its learner ask of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepstream.learner.data.requirements import STRICTEST, Requirements
from stepstream.learner.data.reward_shaping import Sums

UNVERSIONED = -1
"""In place of a policy version: no policy is known to have sampled it."""


class Invalid(Exception):
    """A labelled trajectory that contradicts itself or the model; the message says where, without content."""


@dataclass(frozen=True, slots=True)
class ResponseSpan:
    """Text as the tokens of one training sequence."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int, int]]
    """Of each response that is trained on: its first token, one past its last, and its step's index."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model can take, and what its learner needs."""

    model: str
    vocabulary: int
    """Token ids are below this."""
    max_length: int
    """Longest sequence in tokens."""
    sums: Sums = field(default_factory=Sums)
    """What the learner adds up; by default nothing, so that any shaping will do."""
    alone: bool = False
    """Whether attempts without a group are taken, each by itself."""
    needs: Requirements = STRICTEST
    """Of the learner's objective."""
    speech: Callable[[str], Sequence[int]] | None = None
    """Tokens of a response that somebody wrote, none where it cannot be written (`speech.py`); None: what feedback
    demonstrates is not used."""
    transcript: Callable[[Mapping[str, Any]], Sequence[ResponseSpan]] | None = None
    """Training sequences of a Conversation, none where it cannot be written; None: text is not trained on."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One training sequence, cut after its last trained token."""

    ids: npt.NDArray[np.int64]
    """All tokens. Shape [length]."""
    trained: npt.NDArray[np.int64]
    """Positions of the sampled tokens, rising, each at least 1. Shape [trained]."""
    logprobs: npt.NDArray[np.float32]
    """Behaviour log-probability of each of them; NaN: it was demonstrated, or is known as text. Shape [trained]."""
    versions: npt.NDArray[np.int64]
    """Policy version that sampled each of them, or what was answered in its place; or `UNVERSIONED`.
    Shape [trained]."""
    steps: npt.NDArray[np.int64]
    """Step of the attempt's credit that each of them belongs to. Shape [trained]."""

    def only(self, kept: npt.NDArray[np.bool_]) -> "TokenSequence":
        """The sequence with some of its trained tokens only; `kept` has the shape [trained]."""
        trained = self.trained[kept]
        return TokenSequence(
            ids=self.ids[: int(trained[-1]) + 1 if trained.size else 0],
            trained=trained,
            logprobs=self.logprobs[kept],
            versions=self.versions[kept],
            steps=self.steps[kept],
        )


def is_sampled(record: Mapping[str, Any]) -> bool:
    """Whether all of a LabeledTrajectory is known as tokens with their behaviour log-probabilities."""
    return bool(record["fidelity"] == "token")
