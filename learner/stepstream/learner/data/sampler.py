"""Which groups an update takes, of those that are ready: an order, and caps on what they have in common. Pure.

A choice depends on the groups, on the number of the update and on the settings, not on when the groups came: the same
ready groups give the same choice. (Among equally fresh ones the first to come goes first.)
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt

Sampling = Literal["freshest", "weighted"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group that is ready, as far as the choice is concerned."""

    group_id: str
    number: int
    """When it came: rises."""
    uses: int
    """Updates that trained on it."""
    lag: int
    """Staleness of its oldest trained token, in versions; 0 where no policy is known to have sampled any."""
    tenant: str
    signature: npt.NDArray[np.int64] | None = None
    """MinHash of its attempts' texts; None: not known, and then it is like no other."""


@dataclass(frozen=True, slots=True)
class GroupSampler:
    """How groups are chosen. Groups that were used less often always go first."""

    sampling: Sampling = "freshest"
    """`freshest`: the least stale ones; `weighted`: drawn without replacement, each with the weight exp(-lag/τ)."""
    temperature: float = 1.0
    """τ, in versions."""
    seed: int = 0
    tenant_share: float = 1.0
    """Largest share of an update's groups that may be one tenant's."""
    near_duplicate_cap: int = 0
    """Most groups of an update that are nearly alike; 0: any number."""
    similarity: float = 0.9
    """Jaccard similarity from which groups are nearly alike."""

    @property
    def capped(self) -> bool:
        """Whether there are caps."""
        return self.tenant_share < 1.0 or self.near_duplicate_cap > 0

    def order(self, candidates: Sequence[Candidate], update: int) -> list[Candidate]:
        """The candidates, those to be taken first in front."""
        if self.sampling == "freshest":
            return sorted(candidates, key=lambda c: (c.uses, c.lag, c.number))
        return sorted(candidates, key=lambda c: (c.uses, self._arrival(c, update), c.group_id))

    def choose(
        self, candidates: Sequence[Candidate], count: int, update: int
    ) -> tuple[list[Candidate], dict[str, str]]:
        """Up to `count` candidates, fewer where caps leave no more; and whom a cap passed over, by group, with why."""
        ordered = self.order(candidates, update)
        if not self.capped:
            return ordered[:count], {}
        chosen: list[Candidate] = []
        passed: dict[str, str] = {}
        most_of_tenant = max(1, math.floor(self.tenant_share * count + 1e-9))
        tenants: Counter[str] = Counter()
        for candidate in ordered:
            if len(chosen) == count:
                break
            if tenants[candidate.tenant] >= most_of_tenant:
                passed[candidate.group_id] = "tenant_share"
            elif self._too_many_alike(candidate, chosen):
                passed[candidate.group_id] = "near_duplicate_cap"
            else:
                chosen.append(candidate)
                tenants[candidate.tenant] += 1
        return chosen, passed

    def _arrival(self, candidate: Candidate, update: int) -> float:
        """When its exponential clock rings: the first to ring are a weighted draw without replacement.

        -log(u)/w with u uniform (Efraimidis and Spirakis, "Weighted random sampling with a reservoir"), and u from a
        hash, so that the draw does not depend on the order of the candidates.
        """
        name = f"{self.seed}/{update}/{candidate.group_id}".encode("utf-8", "surrogatepass")
        number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
        uniform = (number + 0.5) / 2**64
        # Its logarithm, since the weights of very stale groups are 0 in floating point.
        return math.log(-math.log(uniform)) + max(0, candidate.lag) / self.temperature

    def _too_many_alike(self, candidate: Candidate, chosen: Sequence[Candidate]) -> bool:
        if not self.near_duplicate_cap or candidate.signature is None:
            return False
        alike = sum(
            other.signature is not None
            and other.signature.size == candidate.signature.size
            and float((other.signature == candidate.signature).mean()) >= self.similarity
            for other in chosen
        )
        return alike >= self.near_duplicate_cap


def sampler_of(config: LearnerSettings) -> GroupSampler:
    """The choice with the learner's settings."""
    return GroupSampler(
        sampling=config.sampling,
        temperature=config.sampling_temperature,
        seed=config.seed,
        tenant_share=config.tenant_share,
        near_duplicate_cap=config.near_duplicate_cap,
        similarity=config.near_duplicate_similarity,
    )


def candidate_of(
    group_id: str, number: int, uses: int, attempts: Sequence[Attempt], version: int, compared: bool
) -> Candidate:
    """A group as a candidate.

    Args:
        group_id: its key.
        number: when it came.
        uses: updates that trained on it.
        attempts: of it, that may be trained on, at least one.
        version: version that the learner trains from.
        compared: whether it matters which groups are nearly alike.
    """
    return Candidate(
        group_id=group_id,
        number=number,
        uses=uses,
        lag=max(attempt.staleness(version) or 0 for attempt in attempts),
        tenant=attempts[0].tenant,
        signature=union([attempt.signature for attempt in attempts]) if compared else None,
    )


def union(signatures: Sequence[npt.NDArray[np.int64] | None]) -> npt.NDArray[np.int64] | None:
    """The MinHash of texts together, which is the smallest value at each place; None where none is known."""
    known = [signature for signature in signatures if signature is not None]
    return np.minimum.reduce(known) if known else None
