"""How far agents may run ahead of the learner: AReaL's capacity (arXiv 2505.24298, section 5.1). Pure."""

STALL_S = 10.0
SLOW = 3.0
_MOST_UNDECIDED = 10_000


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


class Admission:
    """The fold that decides whether the next group may start. Times are seconds of any steady clock.

    Rejects leave the count, as in AReaL. A group whose outcomes are all the same teaches nothing where attempts are
    compared, so the learner lets it go and waits for another: that is known as soon as the group has ended. Of the
    others that it lets go of (stale, say) the learner tells by its decisions. Should it tell nothing, because it or
    the label job stands still, and agents have been held back for far longer than versions take, one group is let in,
    then two, then four more: the loop slows down, but can never stand still.
    """

    def __init__(self, per_version: int, max_ahead: int, group_size: int, *, compares: bool = True) -> None:
        """Starts with nothing under way; `compares`: equal outcomes teach the learner nothing."""
        self._per_version = per_version
        self._max_ahead = max_ahead
        self._group_size = group_size
        self._version = 0
        self._count = 0
        self._begun = False
        self._compares = compares
        self._outcomes: dict[str, list[float]] = {}
        self._undecided: dict[str, int] = {}  # attempts that the learner let go of, by group
        self._relief = 1
        self._advanced_at: float | None = None
        self._interval = 0.0

    def advance(self, version: int, now: float) -> None:
        """Version `version` since the root was published; a lower one than before begins another lineage."""
        if version == self._version:
            return
        if version < self._version or not self._begun:
            # A lineage that is taken up again has consumed its share for each version.
            self._count = version * self._per_version
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
        outcomes = self._outcomes.setdefault(group_id, [])
        outcomes.append(outcome)
        if len(outcomes) == self._group_size:
            del self._outcomes[group_id]
            if self._compares and len(set(outcomes)) == 1:
                self._count -= self._group_size
            else:
                self._undecided[group_id] = 0
                if len(self._undecided) > _MOST_UNDECIDED:
                    del self._undecided[next(iter(self._undecided))]

    def decided(self, group_id: str, *, trained: bool) -> None:
        """The learner trained on an attempt of a group, or let go of it."""
        if group_id not in self._undecided:
            return
        self._undecided[group_id] += 1
        if trained:
            del self._undecided[group_id]
        elif self._undecided[group_id] == self._group_size:
            del self._undecided[group_id]
            self._count -= self._group_size

    def patience_s(self) -> float:
        """Seconds to be held back before `relieve`."""
        return max(STALL_S, SLOW * self._interval)

    def relieve(self) -> None:
        """Agents were held back for `patience_s` and no version came."""
        self._count -= self._relief * self._group_size
        self._relief *= 2
