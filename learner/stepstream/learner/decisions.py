"""Build the events of the learner's decisions about trajectories and of its updates. Pure.

The same decision about the same record has the same id. A learner that reads records again after a crash repeats
events, and consumers recognise them as duplicates.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepstream.learner import JOB
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.drop_reasons import Drop
from stepstream.learner.data.groups import SINGLE_PREFIX, AbandonedGroup, group_key
from stepstream.topics.events import LagFigures, LearnerUpdate, TrainingDecision, new_learner_update
from stepstream.topics.events import new_training_decision as new
from stepstream.topics.ids import derived_id, now_us

TRAINED, DROPPED = "trained", "dropped"
GIVEN_UP = "group_incomplete"


@dataclass(frozen=True, slots=True)
class Use:
    """An update that trained on an attempt."""

    update: int
    """Number since the root."""
    learner_version: int
    """Version that it trained from."""
    checkpoint_version: int
    """Version that contains it."""


@dataclass(frozen=True, slots=True)
class Decider:
    """Builds the events of one lineage."""

    model: str
    root: int

    def dropped(self, drop: Drop, version: int) -> TrainingDecision:
        """Return the decision of a learner that trains from `version` to drop an attempt."""
        decision = self._about(drop.attempt, version, DROPPED, drop.reason)
        decision["reason"] = drop.reason
        decision["trained_revision"] = drop.trained_revision
        return decision

    def trained(self, attempt: Attempt, use: Use) -> TrainingDecision:
        """Return the decision that an attempt is part of a published version."""
        decision = self._about(attempt, use.learner_version, TRAINED, str(use.update))
        decision["update"] = use.update
        decision["checkpoint_version"] = use.checkpoint_version
        return decision

    def update(
        self,
        number: int,
        version: int,
        groups: Sequence[Sequence[Attempt]],
        figures: Mapping[str, float],
        lags: Iterable[LagFigures],
        dropped: Mapping[str, int],
        seconds: Mapping[str, float],
    ) -> LearnerUpdate:
        """Return the event of one update.

        Args:
            number: of the update since the root.
            version: version that it trained from.
            groups: attempts that it trained on.
            figures: figures of the update, by name.
            lags: figures by staleness.
            dropped: attempts dropped since the previous update, by reason.
            seconds: time since the previous update, by activity.
        """
        positions = [part for group in groups for attempt in group for part in attempt.position]
        return new_learner_update(
            event_id=derived_id(JOB, self.model, self.root, "update", number, version, *positions),
            occurred_at_us=now_us(),
            model=self.model,
            root=self.root,
            update=number,
            learner_version=version,
            groups=len(groups),
            trajectories=sum(len(group) for group in groups),
            figures=dict(figures),
            lags=list(lags),
            dropped=dict(dropped),
            seconds=dict(seconds),
            job=JOB,
        )

    def abandoned_attempts(self, decisions: Iterable[Mapping[str, Any]]) -> Iterator[AbandonedGroup]:
        """Yield, from decisions read from the log, the attempts of groups that this lineage closed as incomplete."""
        given_up = (decision for decision in decisions if decision["reason"] == GIVEN_UP)
        return (attempt for attempt in self.decided_attempts(given_up) if not attempt.key.startswith(SINGLE_PREFIX))

    def decided_attempts(self, decisions: Iterable[Mapping[str, Any]]) -> Iterator[AbandonedGroup]:
        """Yield, from decisions read from the log, the attempts on which this lineage decided in any way."""
        for decision in decisions:
            if (decision["model"], decision["root"]) == (self.model, self.root):
                group_id, name = decision["group_id"], decision["trajectory_id"]
                key = SINGLE_PREFIX + name if group_id is None else group_key(decision["tenant"], group_id)
                freshest = decision["learner_version"] - (decision["staleness"] or 0)
                trained = decision["revision"] if decision["outcome"] == TRAINED else decision["trained_revision"] or 0
                yield AbandonedGroup(key, name, decision["revision"], freshest, trained)

    def _about(self, attempt: Attempt, version: int, outcome: str, config: str) -> TrainingDecision:
        partition, offset = attempt.position
        return new(
            event_id=derived_id(JOB, self.model, self.root, partition, offset, outcome, config),
            occurred_at_us=now_us(),
            trajectory_id=attempt.trajectory_id,
            revision=attempt.revision,
            group_id=attempt.group_id or None,
            tenant=attempt.tenant,
            model=self.model,
            root=self.root,
            outcome=outcome,
            learner_version=version,
            staleness=attempt.staleness(version),
            partition=partition,
            offset=offset,
            job=JOB,
        )
