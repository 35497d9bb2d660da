"""Environments whose tasks are made from numbers: how ids are drawn, read, and split into training and held-out tasks.

A task's id is `NAME/SPLIT/NUMBER`. Which split a task belongs to follows from a digest of everything that its solution
depends on, so a held-out question is never met in training, whatever the seeds.
"""

import hashlib
import random
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Generic, TypeVar

from stepstream.services.fleet.environment import Environment, Split, UnknownTaskError

_DRAWN_BITS = 48
_EVAL_SHARE = 8  # one solution in eight is held out

T = TypeVar("T")


class NumberedEnvironment(Environment, Generic[T]):
    """One attempt at one task that was made from a number; `self._task` is what `make` gave."""

    numbers: ClassVar[int | None] = None
    """How many tasks there are, numbered from 0; None: any number makes one."""

    def __init__(self, task_id: str) -> None:
        """An attempt.

        Raises:
            UnknownTaskError: no task has this id; one that stands in the other split has another.
        """
        super().__init__(task_id)
        self._task, solution = self.make(self._number(task_id))
        split = split_of(solution)
        if task_id.split("/")[1] != split:
            raise UnknownTaskError(f"task '{task_id}' is in the other split: {self.name}/{split}/…")

    @classmethod
    @abstractmethod
    def make(cls, number: int) -> tuple[T, str]:
        """The task of a number, and everything that its solution depends on, as a text."""

    @classmethod
    def tasks(cls, seed: int, split: Split) -> Iterator[str]:
        """Endless task ids of one split."""
        rng = random.Random(f"{cls.name}/{seed}/{split}")
        while True:
            number = rng.getrandbits(_DRAWN_BITS) if cls.numbers is None else rng.randrange(cls.numbers)
            if split_of(cls.make(number)[1]) == split:
                yield f"{cls.name}/{split}/{number}"

    @classmethod
    def _number(cls, task_id: str) -> int:
        parts = task_id.split("/")
        if len(parts) == 3 and parts[0] == cls.name and parts[2].isdecimal():
            number = int(parts[2])
            if cls.numbers is None or number < cls.numbers:
                return number
        raise UnknownTaskError(f"no such task: '{task_id}' (a task is {cls.name}/train/N or {cls.name}/eval/N)")


def split_of(solution: str) -> Split:
    """The split of every task whose solution depends on this alone."""
    return "eval" if hashlib.sha256(solution.encode()).digest()[0] % _EVAL_SHARE == 0 else "train"
