"""Decide when the next group may start, by AReaL's capacity rule (arXiv 2505.24298, section 5.1). Pure."""

from dataclasses import dataclass, field

MIN_RELIEF_S = 10.0
RELIEF_INTERVALS = 3.0
"""Intervals between versions that agents wait before relief."""
_MAX_GROUPS = 10_000
"""Groups remembered at once; the learner decides about each long before this many more begin."""


@dataclass(slots=True)
class _Group:
    """Attempts of a group that ended, and those that the learner released."""

    outcomes: list[float] = field(default_factory=list)
    released: set[str] = field(default_factory=set)
    """Attempts that the learner will not train on."""
    is_subtracted: bool = False
    """True if the count no longer includes the group."""


class Admission:
    """Counts trajectories that await training and limits them. Times are seconds of any monotonic clock.

    The count drops a rejected group, as in AReaL. `training-decisions` states the rejections: a group counts until
    the learner has released all its attempts, for example as stale. A group that it trained on stays counted.

    Decisions arrive late, so the fold predicts one case. If equal rewards give no gradient and the outcome is the whole
    reward, a group of equal outcomes leaves the count when its last attempt ends. A later decision to train on it
    restores it.

    Without decisions (the learner or the label job is down) agents could wait forever. After `relief_after_s` without a
    version, `relieve` admits one extra group, then two, then four.
    """

    def __init__(self, per_version: int, max_ahead: int, group_size: int, *, compares: bool = True) -> None:
        """Start with an empty count.

        Args:
            per_version: trajectories that the learner consumes between two versions.
            max_ahead: versions that agents may be ahead.
            group_size: attempts of one group.
            compares: True if equal rewards give the learner no gradient.
        """
        self._per_version = per_version
        self._max_ahead = max_ahead
        self._group_size = group_size
        self._version = 0
        self._count = 0
        self._has_started = False
        self._compares = compares
        self._groups: dict[str, _Group] = {}
        self._relief = 1
        self._advanced_at: float | None = None
        self._interval = 0.0
        self.outcome_only = True
        """True if equal outcomes are equal rewards, as far as known."""

    def advance(self, version: int, now: float) -> None:
        """Note a published version, counted from the lineage's root; a lower one than before starts another lineage."""
        if version == self._version:
            return
        if version < self._version or not self._has_started:
            # A resumed lineage has consumed its share for each version.
            self._count = version * self._per_version
            self._groups.clear()
        if self._advanced_at is not None:
            self._interval = now - self._advanced_at
        self._version, self._advanced_at, self._relief = version, now, 1

    def admits(self) -> bool:
        """Return True if a whole group may start."""
        free = capacity(
            per_version=self._per_version,
            max_ahead=self._max_ahead,
            version=self._version,
            accepted=self._count,
            running=0,  # included in the count; the fleet itself limits how many run at once
            most_running=self._group_size,
        )
        return free >= self._group_size

    def start_group(self) -> None:
        """Count a group that begins."""
        self._count += self._group_size
        self._has_started = True

    def end_attempt(self, group_id: str, outcome: float) -> None:
        """Note the outcome of one attempt of a group."""
        group = self._groups.setdefault(group_id, _Group())
        group.outcomes.append(outcome)
        is_complete = len(group.outcomes) == self._group_size
        if is_complete and len(set(group.outcomes)) == 1 and self._compares and self.outcome_only:
            self._subtract(group)
        if len(self._groups) > _MAX_GROUPS:
            del self._groups[next(iter(self._groups))]

    def add_decision(self, group_id: str, trajectory_id: str, *, trained: bool) -> None:
        """Note that the learner trained on an attempt of a group, or released it for good."""
        group = self._groups.get(group_id)
        if group is None:
            return  # already trained on, another fleet's, or forgotten
        if trained:
            del self._groups[group_id]
            if group.is_subtracted:
                self._count += self._group_size
        else:
            group.released.add(trajectory_id)
            if len(group.released) >= self._group_size:
                self._subtract(group)

    def relief_after_s(self) -> float:
        """Seconds without a new version before the caller should `relieve`."""
        return max(MIN_RELIEF_S, RELIEF_INTERVALS * self._interval)

    def relieve(self) -> None:
        """Admit extra groups, twice as many on each call until a version comes."""
        self._count -= self._relief * self._group_size
        self._relief *= 2

    def _subtract(self, group: _Group) -> None:
        if not group.is_subtracted:
            group.is_subtracted = True
            self._count -= self._group_size


def capacity(*, per_version: int, max_ahead: int, version: int, accepted: int, running: int, most_running: int) -> int:
    """Return how many more trajectories may start now; 0 or less: none.

    Args:
        per_version: trajectories that the learner consumes between two versions, B.
        max_ahead: versions that agents may be ahead, η.
        version: versions published since the root of the lineage, v.
        accepted: trajectories finished and not rejected for training.
        running: trajectories in flight.
        most_running: limit of trajectories in flight.
    """
    return min(most_running - running, (max_ahead + version + 1) * per_version - (accepted + running))
