"""Follow the control plane on the log: its decisions, which of them were done, and what serves."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from typing import Any

from stepstream.config import Settings
from stepstream.topics.catalogue import (
    ALARMS,
    CHECKPOINTS,
    DECISION_ACTS,
    DECISIONS,
    HARNESSES,
    LEARNER_UPDATES,
    ROLLOUTS,
    TRAINING_CONTROL,
)
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Decision, DecisionAct, Harness
from stepstream.topics.table import Table
from stepstream.versions.harnesses import ServedHarnesses, served_harnesses, versions_of
from stepstream.versions.rollouts import ServedVersions, served_versions

_CURRENT_S = 30.0
_POLL_S = 0.2
_FOLLOWED = (DECISIONS, DECISION_ACTS, LEARNER_UPDATES)
TENANT = "default"


class LogReader(AbstractContextManager["LogReader"]):
    """Reads the control plane's topics about the fleet's agent and model, from the topics' ends at its construction."""

    def __init__(self, settings: Settings) -> None:
        """Connect; blocks until the tables are current."""
        self._agent, self._model = settings.fleet.agent, settings.learner.model
        self._stack = ExitStack()
        self._codec = self._stack.enter_context(closing(Codec(settings)))
        self._consumer = self._stack.enter_context(EventConsumer(settings.kafka, self._codec))
        start = {
            (topic, partition): offset
            for topic in _FOLLOWED
            for partition, offset in self._consumer.end_offsets(topic).items()
        }
        self._consumer.follow(list(_FOLLOWED), start)
        self._tables = {
            topic: self._stack.enter_context(Table(settings, topic))
            for topic in (ALARMS, HARNESSES, ROLLOUTS, CHECKPOINTS, TRAINING_CONTROL)
        }
        for table in self._tables.values():
            table.wait_current(_CURRENT_S)
        self._decisions: dict[str, Decision] = {}
        self._acts: dict[str, DecisionAct] = {}
        self.learned_us = 0
        """Time of the learner's newest update of the model, in microseconds since the Unix epoch; 0: there is none."""

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def poll(self) -> None:
        """Read the records that have come."""
        while events := self._consumer.poll(500, _POLL_S):
            for event in events:
                record = event.record
                if record is None or record["model"] != self._model:
                    continue
                if event.topic == LEARNER_UPDATES:
                    self.learned_us = max(self.learned_us, record["occurred_at_us"])
                elif record["agent"] != self._agent:
                    continue
                elif event.topic == DECISIONS:
                    self._decisions.setdefault(record["event_id"], record)
                else:
                    self._acts.setdefault(record["decision_id"], record)

    @property
    def decisions(self) -> list[Decision]:
        """All decisions so far, in order of time, `hold` included."""
        return sorted(self._decisions.values(), key=lambda one: (one["occurred_at_us"], one["event_id"]))

    @property
    def done(self) -> list[Decision]:
        """The decisions that were carried out."""
        return [one for one in self.decisions if self.state_of(one) == "done"]

    def state_of(self, decision: Decision) -> str:
        """Return a decision's state; empty: nothing was done about it."""
        act = self._acts.get(decision["event_id"])
        return "" if act is None else act["state"]

    @property
    def harnesses(self) -> dict[str, Harness]:
        """The agent's harness versions."""
        return versions_of(self._records(HARNESSES), TENANT, self._agent)

    @property
    def harness(self) -> ServedHarnesses:
        """Versions that serve the agent."""
        return served_harnesses(self.harnesses.values())

    @property
    def weights(self) -> ServedVersions:
        """The versions of the weights that serve."""
        checkpoints = [one for one in self._records(CHECKPOINTS) if one["model"] == self._model]
        rollouts = [one for one in self._records(ROLLOUTS) if one["model"] == self._model]
        return served_versions(checkpoints, rollouts[0] if rollouts else None)

    @property
    def is_paused(self) -> bool:
        """True while the learner is paused."""
        found = [one for one in self._records(TRAINING_CONTROL) if one["model"] == self._model]
        return any(one["paused"] for one in found)

    @property
    def has_alarm(self) -> bool:
        """True while an alarm about the model is active."""
        return any(one["model"] == self._model and one["state"] == "raised" for one in self._records(ALARMS))

    def _records(self, topic: str) -> Sequence[Any]:
        return list(self._tables[topic].items().values())
