"""Generate tasks from numbers: draw and parse their ids, and split them into training and held-out tasks.

A task's id is `NAME/SPLIT/NUMBER`. A digest of everything that the task's solution depends on decides its split. So
training never sees a held-out question, for any seed.
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
    """One attempt at one task generated from a number; `self._task` is the task from `make`."""

    numbers: ClassVar[int | None] = None
    """Number of tasks, numbered from 0; None: any number gives a task."""

    def __init__(self, task_id: str) -> None:
        """Generate the task of an id.

        Raises:
            UnknownTaskError: the id is malformed, or its task belongs to the other split.
        """
        super().__init__(task_id)
        self._task, solution = self.make(self._number(task_id))
        split = split_of(solution)
        if task_id.split("/")[1] != split:
            raise UnknownTaskError(f"task '{task_id}' is in the other split: {self.name}/{split}/…")

    @classmethod
    @abstractmethod
    def make(cls, number: int) -> tuple[T, str]:
        """Return the task of a number, and everything that its solution depends on, as a text."""

    @classmethod
    def tasks(cls, seed: int, split: Split) -> Iterator[str]:
        """Yield endless task ids of one split."""
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
    """Return the split of all tasks whose solution depends on this text only."""
    return "eval" if hashlib.sha256(solution.encode()).digest()[0] % _EVAL_SHARE == 0 else "train"
