"""Choose the groups of an update among those that are ready: order them, then apply caps. Pure.

A choice depends on the groups, the number of the update and the settings, not on the time of arrival: the same ready
groups give the same choice. (Among equally fresh groups the first to come goes first.)
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import Attempt

Sampling = Literal["freshest", "weighted"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """The properties of a ready group that decide the choice."""

    group_id: str
    number: int
    """Order of arrival: rises."""
    uses: int
    """Number of updates that trained on it."""
    lag: int
    """Staleness of its oldest trained token, in versions; 0 if no token has a known version."""
    tenant: str
    signature: npt.NDArray[np.int64] | None = None
    """MinHash of its attempts' texts; None: unknown, so the group resembles no other."""
    size_bytes: int = 0
    """Memory of its attempts' tokens."""


@dataclass(frozen=True, slots=True)
class GroupSampler:
    """The sampling settings of a learner. Groups that were used less often always go first."""

    sampling: Sampling = "freshest"
    """`freshest`: the least stale first; `weighted`: drawn without replacement, each with the weight exp(-lag/τ)."""
    temperature: float = 1.0
    """τ, in versions."""
    seed: int = 0
    tenant_share: float = 1.0
    """Largest share of an update's groups that may belong to one tenant."""
    near_duplicate_cap: int = 0
    """Largest number of near-duplicate groups in an update; 0: any number."""
    similarity: float = 0.9
    """Smallest Jaccard similarity of near-duplicate groups."""

    @property
    def has_caps(self) -> bool:
        """True if the settings cap tenants or near-duplicates."""
        return self.tenant_share < 1.0 or self.near_duplicate_cap > 0

    def order(self, candidates: Sequence[Candidate], update: int) -> list[Candidate]:
        """Return the candidates in the order in which update number `update` takes them."""
        return sorted(candidates, key=lambda candidate: self.key(candidate, update))

    @property
    def depends_on_update(self) -> bool:
        """True if the order is another one for each update."""
        return self.sampling == "weighted"

    def key(self, candidate: Candidate, update: int) -> tuple[Any, ...]:
        """Return the sort key of a candidate in update number `update`."""
        if self.sampling == "freshest":
            return candidate.uses, candidate.lag, candidate.number
        return candidate.uses, self._draw_key(candidate, update), candidate.group_id

    def choose(
        self, candidates: Sequence[Candidate], count: int, update: int
    ) -> tuple[list[Candidate], dict[str, str]]:
        """Choose up to `count` candidates; fewer if caps leave no more.

        Returns:
            The chosen candidates, and for each skipped group, by id, the cap that skipped it.
        """
        return self.pick(self.order(candidates, update), count)

    def pick(self, ordered: Iterable[Candidate], count: int) -> tuple[list[Candidate], dict[str, str]]:
        """Take up to `count` candidates in their order, as `choose`; read no more of them than needed."""
        if not self.has_caps:
            return list(islice(ordered, count)), {}
        chosen: list[Candidate] = []
        skipped: dict[str, str] = {}
        most_of_tenant = max(1, math.floor(self.tenant_share * count + 1e-9))
        tenants: Counter[str] = Counter()
        for candidate in ordered:
            if len(chosen) == count:
                break
            if tenants[candidate.tenant] >= most_of_tenant:
                skipped[candidate.group_id] = "tenant_share"
            elif self._too_many_alike(candidate, chosen):
                skipped[candidate.group_id] = "near_duplicate_cap"
            else:
                chosen.append(candidate)
                tenants[candidate.tenant] += 1
        return chosen, skipped

    def _draw_key(self, candidate: Candidate, update: int) -> float:
        """Return log(-log(u)/w) with uniform u: the smallest keys are a weighted draw without replacement.

        See Efraimidis and Spirakis, "Weighted random sampling with a reservoir". u comes from a hash, so that the draw
        does not depend on the order of the candidates.
        """
        name = f"{self.seed}/{update}/{candidate.group_id}".encode("utf-8", "surrogatepass")
        number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
        uniform = (number + 0.5) / 2**64
        # The logarithm of the key: weights of very stale groups are 0 in floating point.
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
    """Return the sampler of the learner's settings."""
    return GroupSampler(
        sampling=config.sampling,
        temperature=config.sampling_temperature,
        seed=config.seed,
        tenant_share=config.tenant_share,
        near_duplicate_cap=config.near_duplicate_cap,
        similarity=config.near_duplicate_similarity,
    )


def candidate_of(
    group_id: str, number: int, uses: int, attempts: Sequence[Attempt], version: int, with_signature: bool
) -> Candidate:
    """Describe a group as a candidate.

    Args:
        group_id: its key.
        number: its order of arrival.
        uses: number of updates that trained on it.
        attempts: its trainable attempts, at least one.
        version: version that the learner trains from.
        with_signature: True if near-duplicates are capped.
    """
    return Candidate(
        group_id=group_id,
        number=number,
        uses=uses,
        lag=max(attempt.staleness(version) or 0 for attempt in attempts),
        tenant=attempts[0].tenant,
        signature=union_signature([attempt.signature for attempt in attempts]) if with_signature else None,
        size_bytes=sum(attempt.size_bytes for attempt in attempts),
    )


def union_signature(signatures: Sequence[npt.NDArray[np.int64] | None]) -> npt.NDArray[np.int64] | None:
    """Return the MinHash of several texts together: the minimum of each permutation; None if none is known."""
    known = [signature for signature in signatures if signature is not None]
    return np.minimum.reduce(known) if known else None
