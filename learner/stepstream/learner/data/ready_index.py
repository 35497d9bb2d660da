"""Keep ready groups in the order in which updates take them, so that a choice looks at few of them. Pure.

A choice over all groups computes every group's staleness again: with 10,000 groups 0.1 s at each poll.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

from stepstream.learner.data.sampler import Candidate, GroupSampler


class ReadyIndex:
    """Candidates in the sampler's order for one update; another update of weighted sampling sorts them again."""

    def __init__(self, sampler: GroupSampler) -> None:
        self._sampler = sampler
        self._candidates: dict[str, Candidate] = {}
        self._order: list[tuple[tuple[Any, ...], str]] = []
        self._update = 0
        self.size_bytes = 0
        """Memory of the candidates' tokens."""

    def __len__(self) -> int:
        return len(self._candidates)

    def put(self, candidate: Candidate) -> None:
        """Add a candidate, or replace the one of the same group."""
        self.remove(candidate.group_id)
        self._candidates[candidate.group_id] = candidate
        insort(self._order, (self._sampler.key(candidate, self._update), candidate.group_id))
        self.size_bytes += candidate.size_bytes

    def remove(self, group_id: str) -> None:
        """Remove a group's candidate; do nothing if there is none."""
        candidate = self._candidates.pop(group_id, None)
        if candidate is not None:
            del self._order[bisect_left(self._order, (self._sampler.key(candidate, self._update), group_id))]
            self.size_bytes -= candidate.size_bytes

    def choose(self, count: int, update: int) -> tuple[list[Candidate], dict[str, str]]:
        """Choose as `GroupSampler.choose` over all candidates."""
        if self._sampler.depends_on_update and update != self._update:
            self._order = sorted((self._sampler.key(each, update), name) for name, each in self._candidates.items())
        self._update = update
        return self._sampler.pick(self._ordered(), count)

    def _ordered(self) -> Iterator[Candidate]:
        return (self._candidates[name] for _, name in self._order)
