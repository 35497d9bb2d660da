"""Provide an environment that repeats one task, for a fleet in another process."""

from collections.abc import Iterator
from itertools import repeat

from stepstream.services.fleet.environment import Split
from stepstream.services.fleet.lookup import Lookup


class OneTask(Lookup):
    """The first lookup task of a seed."""

    @classmethod
    def tasks(cls, seed: int, split: Split) -> Iterator[str]:
        return repeat(next(super().tasks(seed, split)))
