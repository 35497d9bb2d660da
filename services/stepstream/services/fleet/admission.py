"""How far agents may run ahead of the learner: AReaL's capacity (arXiv 2505.24298, section 5.1). Pure."""

from dataclasses import dataclass, field

STALL_S = 10.0
SLOW = 3.0
_MOST_KNOWN = 10_000
"""Groups that are remembered; their learner decides about them long before so many have begun."""


def capacity(*, per_version: int, max_ahead: int, version: int, accepted: int, running: int, most_running: int) -> int:
    """How many more trajectories may be started now; 0 or less: none.

    Args:
        per_version: trajectories that the learner consumes between two versions, B.
        max_ahead: versions that agents may be ahead, η.
        version: versions published since the root of the lineage, v.
        accepted: trajectories finished and not rejected for training.
        running: trajectories under way.
        most_running: limit of trajectories under way.
    """
    return min(most_running - running, (max_ahead + version + 1) * per_version - (accepted + running))


@dataclass(slots=True)
class _Group:
    """What is known of a group."""

    outcomes: list[float] = field(default_factory=list)
    let_go: set[str] = field(default_factory=set)
    """Attempts that the learner let go of."""
    out: bool = False
    """Whether it has left the count."""


class Admission:
    """The fold that decides whether the next group may start. Times are seconds of any steady clock.

    Rejects leave the count, as in AReaL, and the learner's decisions tell them: a group that it let go of whole (stale,
    say, or without anything to compare) leaves the count, one that it trained on does not. They come late, so one case
    is foreseen: where equal rewards teach the learner nothing and the outcome is the whole reward, a group of equal
    outcomes leaves the count as soon as it has ended. The learner has the last word about these too. Should it tell
    nothing, because it or the label job stands still, and agents have been held back for far longer than versions
    take, one group is let in, then two, then four more: the loop slows down, but can never stand still.
    """

    def __init__(self, per_version: int, max_ahead: int, group_size: int, *, compares: bool = True) -> None:
        """Starts with nothing under way; `compares`: equal rewards teach the learner nothing."""
        self._per_version = per_version
        self._max_ahead = max_ahead
        self._group_size = group_size
        self._version = 0
        self._count = 0
        self._begun = False
        self._compares = compares
        self._groups: dict[str, _Group] = {}
        self._relief = 1
        self._advanced_at: float | None = None
        self._interval = 0.0
        self.outcome_alone = True
        """Whether equal outcomes are equal rewards, as far as known."""

    def advance(self, version: int, now: float) -> None:
        """Version `version` since the root was published; a lower one than before begins another lineage."""
        if version == self._version:
            return
        if version < self._version or not self._begun:
            # A lineage that is taken up again has consumed its share for each version.
            self._count = version * self._per_version
            self._groups.clear()
        if self._advanced_at is not None:
            self._interval = now - self._advanced_at
        self._version, self._advanced_at, self._relief = version, now, 1

    def admits(self) -> bool:
        """Whether a whole group may start."""
        free = capacity(
            per_version=self._per_version,
            max_ahead=self._max_ahead,
            version=self._version,
            accepted=self._count,
            running=0,  # within the count; how many run at once is the fleet's own limit
            most_running=self._group_size,
        )
        return free >= self._group_size

    def start_group(self) -> None:
        """A group begins."""
        self._count += self._group_size
        self._begun = True

    def ended(self, group_id: str, outcome: float) -> None:
        """An attempt of a group ended with an outcome."""
        group = self._groups.setdefault(group_id, _Group())
        group.outcomes.append(outcome)
        whole = len(group.outcomes) == self._group_size
        if whole and len(set(group.outcomes)) == 1 and self._compares and self.outcome_alone:
            self._leave(group)
        if len(self._groups) > _MOST_KNOWN:
            del self._groups[next(iter(self._groups))]

    def decided(self, group_id: str, trajectory_id: str, *, trained: bool) -> None:
        """The learner trained on an attempt of a group, or let go of it for good."""
        group = self._groups.get(group_id)
        if group is None:
            return  # trained on already, of another fleet, or forgotten
        if trained:
            del self._groups[group_id]
            if group.out:
                self._count += self._group_size
        else:
            group.let_go.add(trajectory_id)
            if len(group.let_go) >= self._group_size:
                self._leave(group)

    def patience_s(self) -> float:
        """Seconds to be held back before `relieve`."""
        return max(STALL_S, SLOW * self._interval)

    def relieve(self) -> None:
        """Agents were held back for `patience_s` and no version came."""
        self._count -= self._relief * self._group_size
        self._relief *= 2

    def _leave(self, group: _Group) -> None:
        if not group.out:
            group.out = True
            self._count -= self._group_size
