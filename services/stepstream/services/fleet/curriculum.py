"""Draw a task less often while its groups give the learner no gradient. Pure.

A group whose attempts all got the same reward has no advantage: its task is currently too easy or too hard. The next
group of that task gives no gradient either until the policy changes. So the task is spaced out: after one such group
every second draw attempts it, after two every fourth, and so on up to a bound. The bound ensures that the fleet notices
when the policy solves or forgets the task. One group that gives a gradient restores every draw. Environments that never
draw a task twice are unaffected.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

NO_SIGNAL_REASONS = frozenset({"no_variance", "no_success"})
"""Reasons of the learner's decisions that depend on the task, not on when or how its attempts arrived."""
_MAX_ENTRIES = 10_000
"""Groups that await a decision, and tasks that are spaced out; beyond it the oldest are forgotten."""


@dataclass(slots=True)
class _Spacing:
    groups_without_signal: int = 0
    """In a row."""
    draws_to_skip: int = 0


class Curriculum:
    """Turns the learner's decisions about groups into the tasks to skip."""

    def __init__(self, spacing: int) -> None:
        """Attempt each task at least every `spacing`-th draw; 1: skip none."""
        self._spacing = spacing
        self._task_of: dict[str, str] = {}
        self._spaced: dict[str, _Spacing] = {}
        self.skipped = 0
        """Draws skipped so far."""

    def draw(self, tasks: Iterator[str]) -> str:
        """Return the next of endless tasks that is not skipped."""
        return next(task for task in tasks if self._admits(task))

    def start_group(self, group_id: str, task: str) -> None:
        """Note that a group attempts a task."""
        self._task_of[group_id] = task
        _drop_oldest(self._task_of)

    def add_decision(self, group_id: str, reason: str) -> None:
        """Note the learner's decision about an attempt: trained on (empty reason), or dropped for a reason.

        Only the first decision about a group that concerns its task counts.
        """
        if reason and reason not in NO_SIGNAL_REASONS:
            return
        task = self._task_of.pop(group_id, None)
        if task is None:
            return
        if not reason:
            self._spaced.pop(task, None)
            return
        spaced = self._spaced.setdefault(task, _Spacing())
        spaced.groups_without_signal += 1
        spaced.draws_to_skip = skips(spaced.groups_without_signal, self._spacing)
        _drop_oldest(self._spaced)

    def _admits(self, task: str) -> bool:
        spaced = self._spaced.get(task)
        if spaced is None or spaced.draws_to_skip == 0:
            return True
        spaced.draws_to_skip -= 1
        self.skipped += 1
        return False


def skips(groups_without_signal: int, spacing: int) -> int:
    """Return how many draws of a task to skip before its next attempt.

    Args:
        groups_without_signal: groups of the task in a row that gave no gradient.
        spacing: at least every `spacing`-th draw attempts the task.
    """
    return min(1 << min(groups_without_signal, 30), spacing) - 1


def _drop_oldest(entries: dict[str, str] | dict[str, _Spacing]) -> None:
    for oldest in list(islice(entries, max(0, len(entries) - _MAX_ENTRIES))):
        del entries[oldest]
