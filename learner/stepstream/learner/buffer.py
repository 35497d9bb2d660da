"""The replay buffer: folds labelled trajectories into groups that an update can learn from.

A pure fold: time and versions are passed in. Redelivered and superseded records change nothing, so the same records
in any order across groups give the same groups. What was trained on is written down in the checkpoint's inputs;
decisions that depend on time (a group given up, a trajectory grown stale) therefore never have to be repeated.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stepstream.learner.advantages import has_variance
from stepstream.learner.attempt import Attempt, Place

_MOST_OVER = 100_000
"""Groups that ended untrained and are remembered: enough for late attempts, bounded where no version comes."""


@dataclass(slots=True)
class _Group:
    since_s: float
    number: int
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """Newest revision of each trajectory, by trajectory id."""


@dataclass(slots=True)
class _Trained:
    """What is left of a group that was trained on: enough to recognise a copy while a copy could be trained on."""

    freshest: int
    first: Place


class Buffer:
    """Attempts that wait for their group, groups that wait for an update, and what is done with."""

    def __init__(
        self,
        *,
        group_size: int,
        wait_s: float,
        staleness_bound: int,
        root: int,
        version: int,
        positions: Mapping[int, int],
        trained: Iterable[Place] = (),
    ) -> None:
        """An empty buffer.

        Args:
            group_size: attempts that make a group whole.
            wait_s: seconds after which a group that is not whole is given up.
            staleness_bound: largest staleness, in versions, of an attempt to train on.
            root: first version of the lineage; older attempts belong to another lineage.
            version: version that the learner trains from.
            positions: where reading starts, by partition.
            trained: places that this lineage trained on at or after `positions`. Nothing is handed out before
                they have been read again, since what is read before them may be copies of the same.
        """
        self._size, self._wait_s, self._bound = group_size, wait_s, staleness_bound
        self._root, self._version = root, version
        self._positions = dict(positions)
        self._was_trained = set(trained)
        self._recall_until: dict[int, int] = {}
        for partition, offset in self._was_trained:
            self._recall_until[partition] = max(self._recall_until.get(partition, 0), offset + 1)
        self._open: dict[str, _Group] = {}
        self._ready: dict[str, _Group] = {}
        self._trained: dict[str, _Trained] = {}
        self._over: dict[str, int] = {}  # groups that ended untrained: version after which a copy is stale
        self._groups_seen = 0
        self.dropped: Counter[str] = Counter()
        """Attempts that will not be trained on, by reason, since the buffer was made."""

    def see(self, place: Place) -> None:
        """Notes that a place has been read, whatever was there."""
        partition, offset = place
        self._positions[partition] = max(self._positions.get(partition, 0), offset + 1)

    def add(self, attempt: Attempt, now_s: float) -> None:
        """Folds one attempt in; `now_s` is any steady clock, in seconds."""
        self.see(attempt.place)
        reason = attempt.barred
        if attempt.place in self._was_trained:
            self._was_trained.discard(attempt.place)
            self._remember_trained(attempt)
        elif reason in ("split", "other_model", "no_group"):
            self.dropped[reason] += 1
        elif attempt.group_id in self._trained or attempt.group_id in self._over:
            self.dropped["group_over"] += 1
        else:
            self._join(attempt, now_s)

    def give_up(self, now_s: float) -> None:
        """Ends groups that have waited too long for their attempts."""
        for group_id, group in list(self._open.items()):
            if now_s - group.since_s >= self._wait_s:
                self._end(group_id, group, "group_incomplete")

    def advance(self, version: int) -> None:
        """The learner now trains from `version`: lets go of what has grown stale."""
        self._version = version
        if not self._recalling():
            self._was_trained.clear()  # what has not come again is no longer in the log
        for group_id, group in list(self._ready.items()):
            self._settle(group_id, group)
        for group_id, group in list(self._open.items()):
            if all(self._is_stale(attempt.version_min) for attempt in group.attempts.values()):
                self._end(group_id, group, "stale")
        self._trained = {i: group for i, group in self._trained.items() if not self._is_stale(group.freshest)}
        self._over = {i: freshest for i, freshest in self._over.items() if not self._is_stale(freshest)}

    def take(self, count: int) -> list[list[Attempt]] | None:
        """The `count` freshest ready groups, each with its attempts by place; None while there are fewer.

        Freshest first keeps staleness low when agents produce more than the learner can use.
        """
        if not self.has(count):
            return None
        usable = {i: self._usable(group) for i, group in self._ready.items()}
        order = sorted(usable, key=lambda i: (-min(a.version_min for a in usable[i]), self._ready[i].number))
        taken = order[:count]
        for group_id in taken:
            del self._ready[group_id]
            for attempt in usable[group_id]:
                self._remember_trained(attempt)
        return [usable[group_id] for group_id in taken]

    def has(self, count: int) -> bool:
        """Whether `take` would hand out `count` groups."""
        return len(self._ready) >= count and not self._recalling()

    def ready(self) -> int:
        """Groups that wait for an update."""
        return len(self._ready)

    def waiting(self) -> int:
        """Groups that wait for attempts."""
        return len(self._open)

    def resume_offsets(self) -> dict[int, int]:
        """Where a learner that continues from here starts to read, by partition.

        That is at the oldest record that may still matter: one that waits, or one that was trained on and is not
        stale yet, whose copies must be recognised.
        """
        offsets = dict(self._positions)
        held = [a.place for g in (*self._open.values(), *self._ready.values()) for a in g.attempts.values()]
        for partition, offset in [*held, *(group.first for group in self._trained.values()), *self._was_trained]:
            offsets[partition] = min(offset, offsets.get(partition, offset))
        return offsets

    def _recalling(self) -> bool:
        return any(self._positions.get(p, 0) < until for p, until in self._recall_until.items())

    def _join(self, attempt: Attempt, now_s: float) -> None:
        group = self._ready.get(attempt.group_id) or self._open.get(attempt.group_id)
        if group is None:
            self._groups_seen += 1
            group = self._open[attempt.group_id] = _Group(now_s, self._groups_seen)
        known = group.attempts.get(attempt.trajectory_id)
        if known is not None and _rank(known) >= _rank(attempt):
            self.dropped["superseded"] += 1
            return
        if known is not None:
            self.dropped["superseded"] += 1
        group.attempts[attempt.trajectory_id] = attempt
        if attempt.group_id in self._ready:
            self._settle(attempt.group_id, group)
        elif sum(not each.provisional for each in group.attempts.values()) >= self._size:
            self._ready[attempt.group_id] = self._open.pop(attempt.group_id)
            self._settle(attempt.group_id, group)

    def _settle(self, group_id: str, group: _Group) -> None:
        """Ends a whole group that has nothing to teach (any more)."""
        usable = self._usable(group)
        if len(usable) < 2:
            self._end(group_id, group, "group_too_small")
        elif not has_variance([attempt.reward for attempt in usable]):
            self._end(group_id, group, "no_variance")

    def _end(self, group_id: str, group: _Group, reason: str) -> None:
        self._open.pop(group_id, None)
        self._ready.pop(group_id, None)
        # Until a copy would be stale for certain; an attempt without versions counts as sampled now.
        self._over[group_id] = max(a.version_min if a.sequences else self._version for a in group.attempts.values())
        if len(self._over) > _MOST_OVER:
            del self._over[next(iter(self._over))]
        for attempt in group.attempts.values():
            self.dropped[self._bar(attempt) or reason] += 1

    def _usable(self, group: _Group) -> list[Attempt]:
        usable = [attempt for attempt in group.attempts.values() if not self._bar(attempt)]
        return sorted(usable, key=lambda attempt: attempt.place)

    def _bar(self, attempt: Attempt) -> str:
        if attempt.barred:
            return attempt.barred
        if attempt.version_min < self._root:
            return "other_lineage"
        return "stale" if self._is_stale(attempt.version_min) else ""

    def _is_stale(self, version: int) -> bool:
        return self._version - version > self._bound

    def _remember_trained(self, attempt: Attempt) -> None:
        group_id = attempt.group_id
        superseded = self._open.pop(group_id, None) or self._ready.pop(group_id, None)
        if superseded is not None:
            self.dropped["group_over"] += len(superseded.attempts)
        known = self._trained.get(group_id)
        if known is None:
            self._trained[group_id] = _Trained(attempt.version_min, attempt.place)
        else:
            known.freshest = max(known.freshest, attempt.version_min)
            known.first = min(known.first, attempt.place)


def _rank(attempt: Attempt) -> tuple[int, int, int]:
    """Newest revision first; of copies of one revision the first in the log."""
    partition, offset = attempt.place
    return (attempt.revision, -partition, -offset)
