"""Draw tasks by the weights of their families, as the newest record of `training-control` says. Pure.

A drawn task is kept with the probability of its family's weight divided by the largest one. A weight counts as at least
`FLOOR` of the largest, so that no family disappears: the fleet notices when the policy solves or forgets it.
"""

import random
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping

FLOOR = 0.05
COLLAPSED_SHARE = 0.9
"""Share of one family in the newest draws from which the mix counts as collapsed, if there are others."""
_NEWEST = 200
_LAST_PART = re.compile(r"[/:#][^/:#]*$")


def family_of(task_id: str) -> str:
    """Return the task's family: its id without the last part, as the control plane's queries have it."""
    return _LAST_PART.sub("", task_id, count=1)


class TaskMix:
    """Keeps or skips drawn tasks. Not thread-safe."""

    def __init__(self, seed: int) -> None:
        """Begin with equal weights."""
        self._rng = random.Random(seed)
        self._weights: dict[str, float] = {}
        self._newest: deque[str] = deque(maxlen=_NEWEST)
        self._families: set[str] = set()

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weight of each family, 0 or more; one that is not named has weight 1. Empty: equal."""
        if dict(weights) != self._weights:
            self._weights = dict(weights)
            self._newest.clear()

    def draw(self, tasks: Iterator[str]) -> Iterator[str]:
        """Yield the tasks that the weights keep, of endless ones."""
        for task in tasks:
            family = family_of(task)
            self._families.add(family)
            largest = max(map(self._weight, self._families))
            if self._rng.random() * largest < self._weight(family):
                self._newest.append(family)
                yield task

    @property
    def has_collapsed(self) -> bool:
        """True if nearly all of the newest draws are of one family, though there are others."""
        if len(self._newest) < _NEWEST or len(self._families) < 2:
            return False
        [(_, most)] = Counter(self._newest).most_common(1)
        return most >= COLLAPSED_SHARE * _NEWEST

    def _weight(self, family: str) -> float:
        return max(self._weights.get(family, 1.0), FLOOR * max((1.0, *self._weights.values())))
