"""Which tasks are attempted less often: those whose groups, by the learner's own word, taught it nothing. Pure.

A group whose attempts were all paid the same has no advantage: its task is too easy for now, or too hard. What was
generated for it was in vain, and so is the next group as long as the policy has not moved. So such a task is spaced
out: after one such group it is attempted every second time that it is drawn, after two every fourth, and so on up to a
bound, so that it is noticed when the policy comes to solve it, or forgets it. One group that teaches puts it back into
every draw. Environments that never draw a task twice have nothing to space out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

TAUGHT_NOTHING = frozenset({"no_variance", "no_success"})
"""The learner's reasons that tell of the task, not of when or how its attempts came."""
_MOST_KNOWN = 10_000
"""Groups that wait for a decision, and tasks that are spaced out; the oldest are forgotten."""


def passes(fruitless: int, spacing: int) -> int:
    """How often a task is passed over before its next attempt.

    Args:
        fruitless: its groups in a row that taught nothing.
        spacing: it is attempted every so-many-th time at least.
    """
    return min(1 << min(fruitless, 30), spacing) - 1


@dataclass(slots=True)
class _Spaced:
    fruitless: int = 0
    left: int = 0
    """Draws in which it is still passed over."""


class Curriculum:
    """The fold of the learner's decisions about groups into the tasks that are passed over."""

    def __init__(self, spacing: int) -> None:
        """With a `spacing` of 1 nothing is passed over."""
        self._spacing = spacing
        self._task_of: dict[str, str] = {}
        self._spaced: dict[str, _Spaced] = {}
        self.passed_over = 0
        """Draws that were passed over so far."""

    def draw(self, tasks: Iterator[str]) -> str:
        """The next of some endless tasks that is not passed over."""
        return next(task for task in tasks if self._admits(task))

    def started(self, group_id: str, task: str) -> None:
        """A group attempts a task."""
        self._task_of[group_id] = task
        _forget_oldest(self._task_of)

    def decided(self, group_id: str, reason: str) -> None:
        """The learner trained on an attempt of a group (no reason), or let go of it; later words say nothing new."""
        if reason and reason not in TAUGHT_NOTHING:
            return
        task = self._task_of.pop(group_id, None)
        if task is None:
            return
        if not reason:
            self._spaced.pop(task, None)
            return
        spaced = self._spaced.setdefault(task, _Spaced())
        spaced.fruitless += 1
        spaced.left = passes(spaced.fruitless, self._spacing)
        _forget_oldest(self._spaced)

    def _admits(self, task: str) -> bool:
        spaced = self._spaced.get(task)
        if spaced is None or spaced.left == 0:
            return True
        spaced.left -= 1
        self.passed_over += 1
        return False


def _forget_oldest(known: dict[str, str] | dict[str, _Spaced]) -> None:
    for oldest in list(islice(known, max(0, len(known) - _MOST_KNOWN))):
        del known[oldest]
