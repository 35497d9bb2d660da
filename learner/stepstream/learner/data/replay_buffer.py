"""The replay buffer: folds labelled trajectories into groups that an update can learn from.

A pure fold: time and versions are passed in. Redelivered and superseded records change nothing, so the same records
in any order across groups give the same groups. An attempt without a group is a group of one. What was trained on is
written down in the checkpoint's inputs, and a group that is given up in `training-decisions`; neither is decided again
after a restart.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from stepstream.learner.data.attempt import Attempt, LogPosition
from stepstream.learner.data.drop_reasons import Drop
from stepstream.learner.data.groups import ALONE, AbandonedGroup, ClosedGroup, Group, key_of, rank
from stepstream.learner.data.learning_signal import LearningSignal, differing_rewards
from stepstream.learner.data.requirements import STRICTEST, Requirements
from stepstream.learner.data.sampler import Candidate, GroupSampler, candidate_of

_MOST_OVER = 50_000
"""Groups that ended untrained and are remembered: enough for late attempts, bounded where no version comes."""
_NOT_OURS = ("split", "other_model", "no_group")


class ReplayBuffer:
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
        trained: Iterable[LogPosition] = (),
        given_up: Iterable[AbandonedGroup] = (),
        reuse: int = 1,
        choice: GroupSampler | None = None,
        lesson: LearningSignal = differing_rewards,
        needs: Requirements = STRICTEST,
    ) -> None:
        """An empty buffer.

        Args:
            group_size: attempts that make a group whole.
            wait_s: seconds after which a group that is not whole is given up or, where that will do, taken as it is.
            staleness_bound: largest staleness, in versions, of an attempt to train on, where it has to be fresh.
            root: first version of the lineage; older attempts belong to another lineage.
            version: version that the learner trains from.
            positions: where reading starts, by partition.
            trained: places that this lineage trained on at or after `positions`, each as often as it did. Nothing is
                handed out before they have been read again, since what is read before them may be copies of the same.
            given_up: attempts of groups that this lineage gave up.
            reuse: most updates that may train on one group.
            choice: which groups an update takes.
            lesson: whether a group teaches anything.
            needs: of the learner's objective.
        """
        self._size, self._wait_s, self._bound = group_size, wait_s, staleness_bound
        self._root, self._version, self._reuse = root, version, reuse
        self._choice, self._lesson, self._needs = choice or GroupSampler(), lesson, needs
        self._positions = dict(positions)
        self._was_trained = Counter(trained)
        self._recall_until: dict[int, int] = {}
        for partition, offset in self._was_trained:
            self._recall_until[partition] = max(self._recall_until.get(partition, 0), offset + 1)
        self._recalling = bool(self._recall_until)
        self._open: dict[str, Group] = {}
        self._ready: dict[str, Group] = {}
        self._past: dict[str, ClosedGroup] = {}
        for key, trajectory_id, revision, freshest in given_up:
            past = self._past.setdefault(key, ClosedGroup(freshest))
            past.freshest = max(past.freshest, freshest)
            past.seen[trajectory_id] = max(revision, past.seen.get(trajectory_id, 0))
        self._groups_seen = 0
        self._fates: list[Drop] = []
        self.dropped: Counter[str] = Counter()
        """Attempts that were let go of, by reason, since the buffer was made; `duplicate`: copies of records."""

    def see(self, place: LogPosition) -> None:
        """Notes that a place has been read, whatever was there."""
        partition, offset = place
        self._positions[partition] = max(self._positions.get(partition, 0), offset + 1)
        if self._recalling and all(self._positions.get(p, 0) >= until for p, until in self._recall_until.items()):
            self._recalling = False
            for group_id, group in list(self._open.items()):
                self._settle(group_id, group)

    def add(self, attempt: Attempt, now_s: float) -> None:
        """Folds one attempt in; `now_s` is any steady clock, in seconds."""
        key = key_of(attempt)
        times = self._was_trained.pop(attempt.place, 0)
        if times:
            self._past.pop(key, None)
            self._group(key, now_s).train(attempt, times)
        past = self._past.get(key)
        if past is not None and past.reopened_by(attempt):
            del self._past[key]
            past = None
        if attempt.untrainable in _NOT_OURS:
            self._drop(attempt, attempt.untrainable)
        elif past is not None:
            self._late(attempt, past, now_s)
        else:
            self._join(attempt, now_s)
        self.see(attempt.place)

    def give_up(self, now_s: float) -> None:
        """Ends groups that have waited too long for their attempts, or has done with their waiting."""
        if self._recalling:
            return
        for group_id, group in list(self._open.items()):
            if now_s - group.since_s >= self._wait_s:
                if self._needs.whole_groups or self._nothing_in(group):
                    self._end(group_id, group, "group_incomplete")
                else:
                    self._ready[group_id] = self._open.pop(group_id)

    def advance(self, version: int) -> None:
        """The learner now trains from `version`: lets go of what has grown stale."""
        self._version = version
        if not self._recalling:
            self._was_trained.clear()  # what has not come again is no longer in the log
        for group_id, group in list(self._ready.items()):
            self._settle(group_id, group)
        if not self._needs.fresh:
            return  # what was trained on could be trained on for ever, and is remembered
        for group_id, group in list(self._open.items()):
            if all(self._is_stale(attempt) for attempt in group.attempts.values()):
                self._end(group_id, group, "stale")
        self._past = {i: past for i, past in self._past.items() if version - past.freshest <= self._bound}

    def take(self, count: int, update: int = 0) -> list[list[Attempt]] | None:
        """`count` ready groups for an update, each with its attempts by place; None while there are too few."""
        chosen = self._chosen(count, update)
        return [self._use(candidate.group_id) for candidate in chosen] if len(chosen) == count else None

    def has(self, count: int, update: int = 0) -> bool:
        """Whether `take` would hand out `count` groups."""
        return len(self._chosen(count, update)) >= count

    def ready(self) -> int:
        """Groups that wait for an update."""
        return len(self._ready)

    def waiting(self) -> int:
        """Groups that wait for attempts."""
        return len(self._open)

    def fates(self) -> list[Drop]:
        """What was let go of since the last call."""
        fates, self._fates = self._fates, []
        return fates

    def resume_offsets(self) -> dict[int, int]:
        """Where a learner that continues from here starts to read, by partition.

        That is at the oldest record that may still matter: one that waits, or one that was trained on and is not
        stale yet, whose copies must be recognised.
        """
        offsets = dict(self._positions)
        groups = (*self._open.values(), *self._ready.values())
        held = [attempt.place for group in groups for attempt in group.attempts.values()]
        over: tuple[Group | ClosedGroup, ...] = (*groups, *self._past.values())
        trained = [each.first for each in over if each.first is not None]
        for partition, offset in [*held, *trained, *self._was_trained]:
            offsets[partition] = min(offset, offsets.get(partition, offset))
        return offsets

    def _chosen(self, count: int, update: int) -> list[Candidate]:
        if self._recalling or len(self._ready) < count:
            return []
        alike = self._choice.near_duplicate_cap > 0
        candidates = [
            candidate_of(group_id, group.number, group.used, self._usable(group), self._version, alike)
            for group_id, group in self._ready.items()
        ]
        chosen, passed = self._choice.choose(candidates, count, update)
        for group_id, cap in passed.items():
            self._ready[group_id].passed_over = cap
        return chosen

    def _use(self, group_id: str) -> list[Attempt]:
        group = self._ready[group_id]
        usable = self._usable(group)
        for attempt in usable:
            group.train(attempt)
        if group.used >= self._reuse:
            self._close(group_id, group, "reuse_bound")
        return usable

    def _group(self, group_id: str, now_s: float) -> Group:
        group = self._ready.get(group_id) or self._open.get(group_id)
        if group is None:
            self._groups_seen += 1
            group = self._open[group_id] = Group(now_s, self._groups_seen)
        return group

    def _join(self, attempt: Attempt, now_s: float) -> None:
        key = key_of(attempt)
        group = self._group(key, now_s)
        known = group.attempts.get(attempt.trajectory_id)
        if known is not None:
            older, newer = sorted((known, attempt), key=rank)
            if older.revision == newer.revision:
                self.dropped["duplicate"] += 1
            else:
                self._drop(older, "superseded", unless=group.trained)
            if newer is known:
                return
        group.attempts[attempt.trajectory_id] = attempt
        if not self._recalling:
            self._settle(key, group)

    def _late(self, attempt: Attempt, past: ClosedGroup, now_s: float) -> None:
        """An attempt of a group that is done with."""
        seen = max(past.trained.get(attempt.trajectory_id, 0), past.seen.get(attempt.trajectory_id, 0))
        if attempt.revision <= seen:
            self.dropped["duplicate"] += 1
            return
        past.seen[attempt.trajectory_id] = attempt.revision
        if not self._opens_again(attempt, past, now_s):
            self._drop(attempt, "reuse_bound" if past.used_up else "group_over", unless=past.trained)

    def _opens_again(self, attempt: Attempt, past: ClosedGroup, now_s: float) -> bool:
        """Lets in an attempt of a group that is done with, if it has a demonstration: that teaches by itself."""
        # Also its newer revisions while it waits: they may take the demonstration back.
        key, name = key_of(attempt), attempt.trajectory_id
        group = self._ready.get(key) or self._open.get(key)
        if group is None or name not in group.attempts:
            if not attempt.demonstrations or name in past.trained or self._bar(attempt) or self._lesson([attempt]):
                return False
            self._group(key, now_s).alone = True
        self._join(attempt, now_s)
        return True

    def _settle(self, group_id: str, group: Group) -> None:
        """Moves a group on: from waiting to ready when it is whole, and out when it has nothing to teach (any more)."""
        if group.used >= self._reuse:
            self._close(group_id, group, "reuse_bound")
            return
        if group_id in self._open:
            size = 1 if group.alone or group_id.startswith(ALONE) else self._size
            if sum(not each.provisional for each in group.attempts.values()) < size:
                return
            self._ready[group_id] = self._open.pop(group_id)
        if reason := self._nothing_in(group):
            self._end(group_id, group, reason)

    def _nothing_in(self, group: Group) -> str:
        """Why a group teaches nothing; empty where it does."""
        usable = self._usable(group)
        return self._lesson(usable) if usable else "group_too_small"

    def _end(self, group_id: str, group: Group, reason: str) -> None:
        """A group is done with, although no update (more) trains on it."""
        self._close(group_id, group, reason)
        if len(self._past) > _MOST_OVER:
            untrained = next((old for old, past in self._past.items() if past.first is None), None)
            if untrained is not None:
                del self._past[untrained]

    def _close(self, group_id: str, group: Group, reason: str) -> None:
        self._open.pop(group_id, None)
        self._ready.pop(group_id, None)
        # Until a copy would be stale for certain; an attempt without versions counts as sampled now.
        freshest = max((self._version - (a.staleness(self._version) or 0) for a in group.attempts.values()), default=0)
        past = self._past[group_id] = ClosedGroup.of(
            group, freshest, group.used >= self._reuse, self._past.get(group_id)
        )
        for attempt in group.attempts.values():
            trained = group.trained.get(attempt.trajectory_id) == attempt.revision
            if not trained and not self._opens_again(attempt, past, group.since_s):
                bar = self._bar(attempt)
                cap = group.passed_over if bar == "stale" else ""
                self._drop(attempt, cap or bar or reason, unless=group.trained)

    def _drop(self, attempt: Attempt, reason: str, unless: Mapping[str, int] | None = None) -> None:
        """Lets go of an attempt for a reason, which is another one if an older revision of it was trained on."""
        trained = (unless or {}).get(attempt.trajectory_id)
        if trained is not None and trained >= attempt.revision:
            return  # it was trained on, or something newer
        if trained is not None:
            reason = "trained_on_older_revision"
        self.dropped[reason] += 1
        self._fates.append(Drop(attempt, reason, trained))

    def _usable(self, group: Group) -> list[Attempt]:
        usable = [attempt for attempt in group.attempts.values() if not self._bar(attempt)]
        return sorted(usable, key=lambda attempt: attempt.place)

    def _bar(self, attempt: Attempt) -> str:
        if attempt.untrainable or not self._needs.fresh:
            return attempt.untrainable
        if attempt.version_min is not None and attempt.version_min < self._root:
            return "other_lineage"
        return "stale" if self._is_stale(attempt) else ""

    def _is_stale(self, attempt: Attempt) -> bool:
        return attempt.version_min is not None and self._version - attempt.version_min > self._bound
