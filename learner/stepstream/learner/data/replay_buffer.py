"""Collect labelled trajectories in groups and hand ready groups to updates.

A pure fold: time and versions are passed in. Redelivered and superseded records change nothing, so the same records
in any order across groups give the same groups. An attempt without a group is a group of one. Checkpoint inputs record
the trained attempts, and `training-decisions` the groups closed as incomplete; a restart decides neither again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set

from stepstream.learner.data.attempt import Attempt, LogPosition
from stepstream.learner.data.drop_reasons import Drop
from stepstream.learner.data.groups import SINGLE_PREFIX, AbandonedGroup, ClosedGroup, Group, key_of, precedence
from stepstream.learner.data.learning_signal import LearningSignal, reward_signal
from stepstream.learner.data.ready_index import ReadyIndex
from stepstream.learner.data.requirements import STRICTEST, Requirements
from stepstream.learner.data.sampler import Candidate, GroupSampler, candidate_of

_MAX_CLOSED = 50_000
"""Largest number of closed groups kept to recognise late attempts, while no new version lets them expire."""
_EXCLUDED_SPEC = "excluded_reward_spec"
_OTHER_LEARNER = ("split", "other_model", "no_group")


class ReplayBuffer:
    """Open groups (waiting for attempts), ready groups (waiting for an update) and the remains of closed groups."""

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
        abandoned: Iterable[AbandonedGroup] = (),
        reuse: int = 1,
        sampler: GroupSampler | None = None,
        signal: LearningSignal = reward_signal,
        requirements: Requirements = STRICTEST,
        excluded_specs: Set[str] = frozenset(),
    ) -> None:
        """Create an empty buffer.

        Args:
            group_size: attempts that complete a group.
            wait_s: seconds after which an incomplete group is closed, or trained on if the objective accepts that.
            staleness_bound: largest staleness of a trained attempt, in versions, if the objective needs fresh ones.
            root: first version of the lineage; older attempts belong to another lineage.
            version: version that the learner trains from.
            positions: offset by partition at which reading starts.
            trained: log positions at or after `positions` that this lineage trained on, one entry per update. No group
                is handed out before they have been read again: records before them may be copies of the same attempts.
            abandoned: attempts of groups that an earlier run of this lineage closed.
            reuse: largest number of updates that may train on one group.
            sampler: chooses the groups of an update.
            signal: checks whether a group yields a gradient.
            requirements: requirements of the learner's objective.
            excluded_specs: reward specifications whose labels are not trained on.
        """
        self._size, self._wait_s, self._bound = group_size, wait_s, staleness_bound
        self._root, self._version, self._reuse = root, version, reuse
        self._sampler, self._signal, self._requirements = sampler or GroupSampler(), signal, requirements
        self._excluded_specs = frozenset(excluded_specs)
        self._positions = dict(positions)
        self._trained_positions = Counter(trained)
        self._recall_until: dict[int, int] = {}
        for partition, offset in self._trained_positions:
            self._recall_until[partition] = max(self._recall_until.get(partition, 0), offset + 1)
        self._recalling = bool(self._recall_until)
        self._open: dict[str, Group] = {}
        self._ready: dict[str, Group] = {}
        self._index = ReadyIndex(self._sampler)
        self._changed: set[str] = set()
        self._closed: dict[str, ClosedGroup] = {}
        for key, trajectory_id, revision, freshest, trained_revision in abandoned:
            closed = self._closed.setdefault(key, ClosedGroup(freshest))
            closed.freshest = max(closed.freshest, freshest)
            closed.seen[trajectory_id] = max(revision, closed.seen.get(trajectory_id, 0))
            if trained_revision:
                closed.trained[trajectory_id] = max(trained_revision, closed.trained.get(trajectory_id, 0))
        self._groups_opened = 0
        self._drops: list[Drop] = []
        self.dropped: Counter[str] = Counter()
        """Number of dropped attempts by reason since the buffer was created; `duplicate`: copies of records."""

    def mark_read(self, position: LogPosition) -> None:
        """Record that a log position was read; once all trained positions are, groups are handed out again."""
        partition, offset = position
        self._positions[partition] = max(self._positions.get(partition, 0), offset + 1)
        if self._recalling and all(self._positions.get(p, 0) >= until for p, until in self._recall_until.items()):
            self._recalling = False
            for group_id, group in list(self._open.items()):
                self._move_on(group_id, group)

    def add(self, attempt: Attempt, now_s: float) -> None:
        """Add one attempt to its group; `now_s` is any steady clock, in seconds."""
        key = key_of(attempt)
        times = self._trained_positions.pop(attempt.position, 0)
        if times:
            self._closed.pop(key, None)
            self._group(key, now_s).train(attempt, times)
            self._changed.add(key)
        closed = self._closed.get(key)
        if closed is not None and closed.may_reopen(attempt):
            del self._closed[key]
            closed = None
        if attempt.untrainable in _OTHER_LEARNER:
            self._drop(attempt, attempt.untrainable)
        elif closed is not None:
            self._add_late(attempt, closed, now_s)
        else:
            self._join(attempt, now_s)
        self.mark_read(attempt.position)

    def expire_groups(self, now_s: float) -> None:
        """Close groups that have waited `wait_s` for attempts; or make them ready if the objective allows."""
        if self._recalling:
            return
        for group_id, group in list(self._open.items()):
            if now_s - group.since_s >= self._wait_s:
                if self._requirements.whole_groups or self._why_no_signal(group):
                    self._end(group_id, group, "group_incomplete")
                else:
                    self._ready[group_id] = self._open.pop(group_id)
                    self._changed.add(group_id)

    def advance(self, version: int) -> None:
        """Set the version that the learner trains from, and drop stale attempts and groups."""
        self._version = version
        if not self._recalling:
            self._trained_positions.clear()  # the positions still missing are no longer in the log
        self._changed.update(self._ready)
        for group_id, group in list(self._ready.items()):
            self._move_on(group_id, group)
        if not self._requirements.fresh:
            return  # attempts never expire, so closed groups are kept to recognise copies
        for group_id, group in list(self._open.items()):
            if all(self._is_stale(attempt) for attempt in group.attempts.values()):
                self._end(group_id, group, "stale")
        self._closed = {i: closed for i, closed in self._closed.items() if version - closed.freshest <= self._bound}

    def exclude_specs(self, specs: Set[str]) -> None:
        """Set the reward specifications whose labels are not trained on, and drop ready groups without others."""
        if specs == self._excluded_specs:
            return
        self._excluded_specs = frozenset(specs)
        self._changed.update(self._ready)
        for group_id, group in list(self._ready.items()):
            self._move_on(group_id, group)

    def take(self, count: int, update: int = 0) -> list[list[Attempt]] | None:
        """Return `count` ready groups for an update, each sorted by log position; None while there are too few."""
        chosen = self._chosen(count, update)
        return [self._use(candidate.group_id) for candidate in chosen] if len(chosen) == count else None

    def has(self, count: int, update: int = 0) -> bool:
        """Return True if `take` would return `count` groups."""
        return len(self._chosen(count, update)) >= count

    def ready(self) -> int:
        """Return the number of groups that wait for an update."""
        return len(self._ready)

    def ready_bytes(self) -> int:
        """Return the memory of the tokens of groups that wait for an update."""
        if not self._recalling:
            self._update_index()
        return self._index.size_bytes

    def waiting(self) -> int:
        """Return the number of groups that wait for attempts."""
        return len(self._open)

    def take_drops(self) -> list[Drop]:
        """Return the attempts dropped since the last call."""
        drops, self._drops = self._drops, []
        return drops

    def resume_offsets(self) -> dict[int, int]:
        """Return the offset by partition at which a learner that continues from here starts to read.

        It is that of the oldest record that is still needed: one of a waiting group, or a trained one that is not
        stale yet, since its copies must be recognised.
        """
        offsets = dict(self._positions)
        groups = (*self._open.values(), *self._ready.values())
        waiting = [attempt.position for group in groups for attempt in group.attempts.values()]
        all_groups: tuple[Group | ClosedGroup, ...] = (*groups, *self._closed.values())
        trained = [group.first for group in all_groups if group.first is not None]
        for partition, offset in [*waiting, *trained, *self._trained_positions]:
            offsets[partition] = min(offset, offsets.get(partition, offset))
        return offsets

    def _chosen(self, count: int, update: int) -> list[Candidate]:
        if self._recalling or len(self._ready) < count:
            return []
        self._update_index()
        chosen, skipped = self._index.choose(count, update)
        for group_id, cap in skipped.items():
            self._ready[group_id].skipped_by = cap
        return chosen

    def _update_index(self) -> None:
        alike = self._sampler.near_duplicate_cap > 0
        for group_id in self._changed:
            group = self._ready.get(group_id)
            if group is None:
                self._index.remove(group_id)
            else:
                self._index.put(
                    candidate_of(group_id, group.number, group.used, self._usable(group), self._version, alike)
                )
        self._changed.clear()

    def _use(self, group_id: str) -> list[Attempt]:
        group = self._ready[group_id]
        usable = self._usable(group)
        for attempt in usable:
            group.train(attempt)
        self._changed.add(group_id)
        if group.used >= self._reuse:
            self._close(group_id, group, "reuse_bound")
        return usable

    def _group(self, group_id: str, now_s: float) -> Group:
        group = self._ready.get(group_id) or self._open.get(group_id)
        if group is None:
            self._groups_opened += 1
            group = self._open[group_id] = Group(now_s, self._groups_opened)
        return group

    def _join(self, attempt: Attempt, now_s: float) -> None:
        key = key_of(attempt)
        group = self._group(key, now_s)
        known = group.attempts.get(attempt.trajectory_id)
        if known is not None:
            older, newer = sorted((known, attempt), key=precedence)
            if older.revision == newer.revision:
                self.dropped["duplicate"] += 1
            else:
                self._drop(older, "superseded", unless=group.trained)
            if newer is known:
                return
        group.attempts[attempt.trajectory_id] = attempt
        self._changed.add(key)
        if not self._recalling:
            self._move_on(key, group)

    def _add_late(self, attempt: Attempt, closed: ClosedGroup, now_s: float) -> None:
        """Add an attempt of a closed group: ignore a copy, else reopen the group or drop the attempt."""
        seen = max(closed.trained.get(attempt.trajectory_id, 0), closed.seen.get(attempt.trajectory_id, 0))
        if attempt.revision <= seen:
            self.dropped["duplicate"] += 1
            return
        closed.seen[attempt.trajectory_id] = attempt.revision
        if not self._reopen(attempt, closed, now_s):
            self._drop(attempt, "reuse_bound" if closed.used_up else "group_over", unless=closed.trained)

    def _reopen(self, attempt: Attempt, closed: ClosedGroup, now_s: float) -> bool:
        """Reopen a closed group for an attempt with a demonstration, which needs no other attempts.

        Returns:
            True if the attempt was added.
        """
        # Newer revisions of a waiting attempt are added too: they may withdraw the demonstration.
        key, name = key_of(attempt), attempt.trajectory_id
        group = self._ready.get(key) or self._open.get(key)
        if group is None or name not in group.attempts:
            if (
                not attempt.demonstrations
                or name in closed.trained
                or self._exclusion(attempt)
                or self._signal([attempt])
            ):
                return False
            self._group(key, now_s).is_single = True
        self._join(attempt, now_s)
        return True

    def _move_on(self, group_id: str, group: Group) -> None:
        """Make an open group ready once it is complete, and close it if it yields no gradient or is used up."""
        if group.used >= self._reuse:
            self._close(group_id, group, "reuse_bound")
            return
        if group_id in self._open:
            size = 1 if group.is_single or group_id.startswith(SINGLE_PREFIX) else self._size
            if sum(not each.provisional for each in group.attempts.values()) < size:
                return
            self._ready[group_id] = self._open.pop(group_id)
            self._changed.add(group_id)
        if reason := self._why_no_signal(group):
            self._end(group_id, group, reason)

    def _why_no_signal(self, group: Group) -> str:
        """Return the reason why a group yields no gradient; empty: it yields one."""
        usable = self._usable(group)
        return self._signal(usable) if usable else "group_too_small"

    def _end(self, group_id: str, group: Group, reason: str) -> None:
        """Close a group on which no further update trains."""
        self._close(group_id, group, reason)
        if len(self._closed) > _MAX_CLOSED:
            untrained = next((old for old, closed in self._closed.items() if closed.first is None), None)
            if untrained is not None:
                del self._closed[untrained]

    def _close(self, group_id: str, group: Group, reason: str) -> None:
        self._open.pop(group_id, None)
        self._ready.pop(group_id, None)
        self._changed.add(group_id)
        # The group is kept until any copy would be stale; an attempt without versions counts as sampled now.
        freshest = max((self._version - (a.staleness(self._version) or 0) for a in group.attempts.values()), default=0)
        excluded = all(self._exclusion(attempt) == _EXCLUDED_SPEC for attempt in group.attempts.values())
        closed = self._closed[group_id] = ClosedGroup.of(
            group, freshest, group.used >= self._reuse, self._closed.get(group_id), excluded=excluded
        )
        for attempt in group.attempts.values():
            trained = group.trained.get(attempt.trajectory_id) == attempt.revision
            if not trained and not self._reopen(attempt, closed, group.since_s):
                exclusion = self._exclusion(attempt)
                cap = group.skipped_by if exclusion == "stale" else ""
                self._drop(attempt, cap or exclusion or reason, unless=group.trained)

    def _drop(self, attempt: Attempt, reason: str, unless: Mapping[str, int] | None = None) -> None:
        """Drop an attempt; do nothing if `unless`, the trained revisions, has this revision or a newer one.

        With an older trained revision the reason becomes `trained_on_older_revision`.
        """
        trained = (unless or {}).get(attempt.trajectory_id)
        if trained is not None and trained >= attempt.revision:
            return
        if trained is not None:
            reason = "trained_on_older_revision"
        self.dropped[reason] += 1
        self._drops.append(Drop(attempt, reason, trained))

    def _usable(self, group: Group) -> list[Attempt]:
        usable = [attempt for attempt in group.attempts.values() if not self._exclusion(attempt)]
        return sorted(usable, key=lambda attempt: attempt.position)

    def _exclusion(self, attempt: Attempt) -> str:
        if not attempt.untrainable and attempt.reward_spec in self._excluded_specs:
            return _EXCLUDED_SPEC
        if attempt.untrainable or not self._requirements.fresh:
            return attempt.untrainable
        if attempt.version_min is not None and attempt.version_min < self._root:
            return "other_lineage"
        return "stale" if self._is_stale(attempt) else ""

    def _is_stale(self, attempt: Attempt) -> bool:
        return attempt.version_min is not None and self._version - attempt.version_min > self._bound
