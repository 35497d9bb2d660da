"""What the learner decides about trajectories, and its updates, as events. Pure.

The same decision about the same record has the same id, so that a learner that reads records again after a crash says
nothing new about them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepstream.learner import JOB
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.drop_reasons import Drop
from stepstream.learner.data.groups import AbandonedGroup, group_key
from stepstream.topics.events import LagFigures, LearnerUpdate, TrainingDecision, new_learner_update
from stepstream.topics.events import new_training_decision as new
from stepstream.topics.ids import derived_id, now_us

DECISIONS, UPDATES = "training-decisions", "learner-updates"
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
    """Version that it is part of."""


@dataclass(frozen=True, slots=True)
class Decider:
    """Writes the events of one lineage."""

    model: str
    root: int

    def dropped(self, fate: Drop, version: int) -> TrainingDecision:
        """An attempt was let go of by a learner that trains from `version`."""
        decision = self._about(fate.attempt, version, DROPPED, fate.reason)
        decision["reason"] = fate.reason
        decision["trained_revision"] = fate.trained_revision
        return decision

    def trained(self, attempt: Attempt, use: Use) -> TrainingDecision:
        """An attempt is part of a published version."""
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
        """An update was done; `dropped` and `seconds` are since the one before."""
        places = [part for group in groups for attempt in group for part in attempt.place]
        return new_learner_update(
            event_id=derived_id(JOB, self.model, self.root, "update", number, version, *places),
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

    def given_up(self, decisions: Iterable[Mapping[str, Any]]) -> Iterator[AbandonedGroup]:
        """Of decisions that were read from the log, the attempts of groups that this lineage gave up."""
        for decision in decisions:
            ours = (decision["model"], decision["root"], decision["reason"]) == (self.model, self.root, GIVEN_UP)
            if ours and decision["group_id"] is not None:
                freshest = decision["learner_version"] - (decision["staleness"] or 0)
                key = group_key(decision["tenant"], decision["group_id"])
                yield AbandonedGroup(key, decision["trajectory_id"], decision["revision"], freshest)

    def _about(self, attempt: Attempt, version: int, outcome: str, config: str) -> TrainingDecision:
        partition, offset = attempt.place
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
