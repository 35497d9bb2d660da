"""The groups that the replay buffer keeps: those that wait, and what is left of those that are done with. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from stepstream.learner.data.attempt import Attempt, LogPosition

ALONE = "\0"
"""How the key of an attempt without a group begins; no group's id begins so."""


def key_of(attempt: Attempt) -> str:
    """Names the group of an attempt: one without a group is a group of one."""
    return group_key(attempt.tenant, attempt.group_id) if attempt.group_id else ALONE + attempt.trajectory_id


def group_key(tenant: str, group_id: str) -> str:
    """Names a group; the same id used by another tenant is another group."""
    return f"{group_id}\0{tenant}"


class AbandonedGroup(NamedTuple):
    """An attempt of a group that an earlier run of the learner gave up."""

    key: str
    """Of the group, as `key_of` gives it."""
    trajectory_id: str
    revision: int
    freshest: int
    """Version of the group's freshest attempt, as far as known from this one."""


@dataclass(slots=True)
class Group:
    """Attempts at one task, until it is done with."""

    since_s: float
    number: int
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """Newest revision of each trajectory, by trajectory id."""
    uses: Counter[str] = field(default_factory=Counter)
    """How often each trajectory was trained on."""
    trained: dict[str, int] = field(default_factory=dict)
    """Newest revision of each that was trained on."""
    first: LogPosition | None = None
    """First place in the log that was trained on."""
    alone: bool = False
    """Whether it waits for no other attempts: what was demonstrated late teaches by itself."""
    passed_over: str = ""
    """The cap that kept it out of an update."""

    @property
    def used(self) -> int:
        """Updates that trained on it."""
        return max(self.uses.values(), default=0)

    def train(self, attempt: Attempt, times: int = 1) -> None:
        """Notes that an update trained on the attempt."""
        name = attempt.trajectory_id
        self.uses[name] += times
        self.trained[name] = max(attempt.revision, self.trained.get(name, 0))
        self.first = min(attempt.place, self.first or attempt.place)


@dataclass(slots=True)
class ClosedGroup:
    """What is left of a group that is done with: enough to recognise copies while they could be trained on."""

    freshest: int
    """Version of its freshest attempt: once that is stale, no copy can be trained on."""
    first: LogPosition | None = None
    """First place that was trained on; None: nothing was."""
    used_up: bool = False
    """Whether it was trained on as often as allowed."""
    trained: dict[str, int] = field(default_factory=dict)
    """Newest revision that was trained on, by trajectory."""
    seen: dict[str, int] = field(default_factory=dict)
    """Newest revision that was there at the end, by trajectory."""

    def reopened_by(self, attempt: Attempt) -> bool:
        """Whether an attempt may be trained on after all: no other's credit hangs on one without a group."""
        newer = attempt.revision > self.seen.get(attempt.trajectory_id, 0)
        return not attempt.group_id and not self.trained and newer

    @classmethod
    def of(cls, group: Group, freshest: int, used_up: bool, before: "ClosedGroup | None") -> Self:
        """What is left of a group; `before` is what was left of it when it was opened again."""
        seen = {name: attempt.revision for name, attempt in group.attempts.items()}
        if before is None:
            return cls(freshest, group.first, used_up, group.trained, seen)
        return cls(
            freshest=max(freshest, before.freshest),
            first=min((first for first in (group.first, before.first) if first is not None), default=None),
            used_up=used_up or before.used_up,
            trained=_newest(group.trained, before.trained),
            seen=_newest(seen, before.seen),
        )


def _newest(revisions: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {name: max(revisions.get(name, 0), others.get(name, 0)) for name in {**others, **revisions}}


def rank(attempt: Attempt) -> tuple[int, int, int]:
    """Newest revision highest; of copies of one revision the first in the log."""
    partition, offset = attempt.place
    return (attempt.revision, -partition, -offset)
