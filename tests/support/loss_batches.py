"""Build batches for tests of the losses: the published test vectors, and seeded ragged batches in float64."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from stepstream.learner.losses import Batch

Credit = Literal["sequence", "step"]

BEHAVIOUR = torch.tensor([-1.0, -2.0, -0.2, -3.0], dtype=torch.float64)
PROXIMAL = torch.tensor([-0.9, -1.0, -1.0, -1.2], dtype=torch.float64)
CURRENT = torch.tensor([-0.6, -1.1, -1.3, -1.2], dtype=torch.float64)


def doubles(*values: float) -> Tensor:
    """Return a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def one_sequence(advantage: float | Tensor, current: Tensor = CURRENT) -> Batch:
    """Return the vectors' four tokens as one sequence of two steps."""
    signs = torch.full_like(BEHAVIOUR, advantage) if isinstance(advantage, float) else advantage
    return Batch(
        current=current,
        behaviour=BEHAVIOUR,
        advantage=signs,
        proximal=PROXIMAL,
        sequences=torch.zeros(4, dtype=torch.int64),
        steps=torch.tensor([0, 0, 1, 1]),
    )


@dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths."""

    lengths: tuple[int, ...]
    batch: Batch

    @property
    def current(self) -> Tensor:
        """Current log-probabilities, the leaf of the gradients."""
        return self.batch.current


def ragged(seed: int, sequences: int = 7, spread: float = 0.5, credit: Credit = "sequence") -> Ragged:
    """Return a batch that depends only on its arguments.

    Args:
        seed: Seed of NumPy's PCG64, whose stream is fixed.
        sequences: Number of sequences.
        spread: Standard deviation of the policies' log-probabilities around each other, in nats.
        credit: Unit that has one advantage.
    """
    rng = np.random.default_rng(seed)
    lengths = tuple(int(n) for n in rng.integers(1, 12, sequences))
    total = sum(lengths)
    behaviour = -rng.exponential(1.5, total) - 0.05
    proximal = np.minimum(behaviour + rng.normal(0, spread, total), -1e-3)
    current = np.minimum(proximal + rng.normal(0, spread / 2, total), -1e-3)
    reference = np.minimum(proximal + rng.normal(0, spread, total), -1e-3)
    index = np.repeat(np.arange(sequences), lengths)
    step = np.concatenate([np.arange(n) // 3 for n in lengths])
    by_sequence, versions = rng.normal(0, 1, sequences)[index], rng.integers(0, 6, total)
    # Steps of one sequence differ in size, and often in sign.
    by_step = rng.normal(0, 1, (sequences, 4))[index, step]
    return Ragged(
        lengths,
        Batch(
            current=torch.from_numpy(current).requires_grad_(),
            behaviour=torch.from_numpy(behaviour),
            proximal=torch.from_numpy(proximal),
            reference=torch.from_numpy(reference),
            advantage=torch.from_numpy(by_sequence if credit == "sequence" else by_step),
            sequences=torch.from_numpy(index),
            steps=torch.from_numpy(index * 100 + step),
            versions=torch.from_numpy(versions),
            version=5,
        ),
    )


def padded(values: Tensor, lengths: tuple[int, ...], fill: float = 0.0) -> Tensor:
    """Return the flat tokens as [sequences, longest]."""
    return torch.nn.utils.rnn.pad_sequence(list(values.split(list(lengths))), batch_first=True, padding_value=fill)
