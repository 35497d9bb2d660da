"""Represent the groups of the replay buffer: open and ready ones, and the remains of closed ones. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from stepstream.learner.data.attempt import Attempt, LogPosition
from stepstream.topics.label_precedence import label_precedence

SINGLE_PREFIX = "\0"
"""First character of the key of an attempt without a group; no group id begins with it."""


def key_of(attempt: Attempt) -> str:
    """Return the key of an attempt's group; an attempt without a group is a group of one."""
    if attempt.group_id:
        return group_key(attempt.tenant, attempt.group_id)
    return SINGLE_PREFIX + group_key(attempt.tenant, attempt.trajectory_id)


def group_key(tenant: str, group_id: str) -> str:
    """Return the key of a group: the same id of another tenant is another group."""
    return f"{group_id}\0{tenant}"


class AbandonedGroup(NamedTuple):
    """An attempt of a group that an earlier run of the learner closed."""

    key: str
    """Key of the group, see `key_of`."""
    trajectory_id: str
    revision: int
    freshest: int
    """Version of the group's freshest attempt, as far as this attempt shows it."""
    trained: int = 0
    """Newest trained revision; 0: none."""


@dataclass(slots=True)
class Group:
    """Attempts at one task, until the group is closed."""

    since_s: float
    """Time of its first attempt, by the caller's steady clock."""
    number: int
    """Order of arrival: rises."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """Newest revision of each trajectory, by trajectory id."""
    uses: Counter[str] = field(default_factory=Counter)
    """Number of updates that trained on each trajectory."""
    trained: dict[str, int] = field(default_factory=dict)
    """Newest trained revision of each trajectory."""
    first: LogPosition | None = None
    """First log position that was trained on; None: none was."""
    is_single: bool = False
    """True if it waits for no other attempts: it was reopened for a late demonstration, which needs no group."""
    skipped_by: str = ""
    """Sampling cap that kept it out of the last update considered; empty: none did."""

    @property
    def used(self) -> int:
        """Number of updates that trained on the group."""
        return max(self.uses.values(), default=0)

    def train(self, attempt: Attempt, times: int = 1) -> None:
        """Record that `times` updates trained on the attempt."""
        name = attempt.trajectory_id
        self.uses[name] += times
        self.trained[name] = max(attempt.revision, self.trained.get(name, 0))
        self.first = min(attempt.position, self.first or attempt.position)


@dataclass(slots=True)
class ClosedGroup:
    """Remains of a closed group: enough to recognise copies for as long as they could be trained on."""

    freshest: int
    """Version of its freshest attempt: once that is stale, no copy can be trained on."""
    first: LogPosition | None = None
    """First log position that was trained on; None: none was."""
    used_up: bool = False
    """True if it was trained on as often as `learner.reuse` allows."""
    trained: dict[str, int] = field(default_factory=dict)
    """Newest trained revision, by trajectory."""
    seen: dict[str, int] = field(default_factory=dict)
    """Newest revision that the group held or dropped, by trajectory."""
    excluded: bool = False
    """True if it ended since the reward specification of all its labels was excluded."""

    def may_reopen(self, attempt: Attempt) -> bool:
        """Return True if a newer revision of an attempt may still be trained on.

        That of an attempt without a group may, since its credit depends on no other attempt. After an exclusion, all
        attempts may get newer labels, of the specification that replaces the excluded one.
        """
        newer = attempt.revision > self.seen.get(attempt.trajectory_id, 0)
        return newer and not self.trained and (not attempt.group_id or self.excluded)

    @classmethod
    def of(
        cls, group: Group, freshest: int, used_up: bool, before: "ClosedGroup | None", *, excluded: bool = False
    ) -> Self:
        """Return the remains of a group, merged with `before`, its remains from an earlier closing."""
        seen = {name: attempt.revision for name, attempt in group.attempts.items()}
        if before is None:
            return cls(freshest, group.first, used_up, group.trained, seen, excluded)
        return cls(
            freshest=max(freshest, before.freshest),
            first=min((first for first in (group.first, before.first) if first is not None), default=None),
            used_up=used_up or before.used_up,
            trained=_newest(group.trained, before.trained),
            seen=_newest(seen, before.seen),
            excluded=excluded and before.excluded,
        )


def _newest(revisions: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {name: max(revisions.get(name, 0), others.get(name, 0)) for name in {**others, **revisions}}


def precedence(attempt: Attempt) -> tuple[tuple[int, str], int, int]:
    """Return a sort key: the label that counts is higher; among copies of one label, the first in the log."""
    partition, offset = attempt.position
    return (label_precedence(attempt.revision, attempt.label_id), -partition, -offset)
