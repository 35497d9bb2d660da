"""Follow the log of decisions, and the newest records of the compacted topics that the controller decides on."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from stepstream.config import Settings
from stepstream.services.control.acts import Record
from stepstream.services.control.history import DecisionLog
from stepstream.services.control.scope import Scope, Serving, active_alarms, training_key
from stepstream.services.control.signatures import TrustedKeys
from stepstream.topics.catalogue import (
    ALARMS,
    APPROVALS,
    CONTROL_POLICIES,
    DECISION_ACTS,
    DECISIONS,
    HARNESSES,
    TRAINING_CONTROL,
)
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import ControlPolicy
from stepstream.topics.table import Table, wait_all_current
from stepstream.versions.follower import VersionFollower
from stepstream.versions.harnesses import served_harnesses, versions_of

_LOG = (DECISIONS, DECISION_ACTS, APPROVALS)
_BATCH, _POLL_S, _EMPTY_POLL_S = 1000, 0.2, 0.05
_CURRENT_S = 30.0


class NotCurrent(Exception):
    """The compacted topics were not read to their ends in time."""


class ControlLog(AbstractContextManager["ControlLog"]):
    """Everything that the controller reads from Kafka. Use it from one thread."""

    def __init__(self, settings: Settings, codec: Codec) -> None:
        """Start to follow; blocks until the log of decisions has been read.

        Raises:
            KafkaException: a topic is missing, or no broker answers.
            SettingsError: `control.trusted_keys` has a key twice.
        """
        self.decisions = DecisionLog(keys=TrustedKeys(settings.control.trusted_keys))
        self._stack = ExitStack()
        self._tables = {
            topic: self._stack.enter_context(Table(settings, topic))
            for topic in (ALARMS, CONTROL_POLICIES, HARNESSES, TRAINING_CONTROL)
        }
        self._versions = self._stack.enter_context(VersionFollower(settings))
        self._consumer = self._stack.enter_context(EventConsumer(settings.kafka, codec))
        self._consumer.follow(_LOG)
        while not self._consumer.is_caught_up():
            self._poll(_POLL_S)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self) -> None:
        """Read all topics to their ends.

        Raises:
            NotCurrent: Kafka or the registry does not answer.
        """
        while self._poll(_EMPTY_POLL_S):
            pass
        if not wait_all_current(self._tables.values(), _CURRENT_S) or not self._versions.wait_current(_CURRENT_S):
            raise NotCurrent("the compacted topics were not read to their ends: check Kafka and the schema registry")
        if faults := [table.fault for table in self._tables.values() if table.fault]:
            raise NotCurrent(str(faults[0]))

    def add_own(self, records: Iterable[Record]) -> None:
        """Fold records that were just committed, and wait until the compacted topics show them.

        Raises:
            NotCurrent: as `read`.
        """
        is_served = False
        for record in records:
            if record.topic in _LOG:
                self.decisions.add(record.topic, record.value)
            else:
                is_served = True
        if is_served:
            self.read()

    def policies(self) -> list[ControlPolicy]:
        """Return the control policies of all tenants."""
        return list(self._tables[CONTROL_POLICIES].items().values())

    def serving(self, scope: Scope) -> Serving:
        """Return what serves a scope."""
        harnesses = self._tables[HARNESSES].items().values()
        alarms = list(self._tables[ALARMS].items().values())
        training: Any = self._tables[TRAINING_CONTROL].get(training_key(scope.tenant, scope.model))
        return Serving(
            self._versions.snapshot(scope.model),
            versions_of(harnesses, scope.tenant, scope.agent),
            training,
            active_alarms(alarms, scope),
            active_alarms(alarms, scope, of_others=True),
        )

    def open_tests(self, scopes: Sequence[Scope]) -> int:
        """Return how many tests of canaries run for the scopes.

        One scope tests the weights of a model; each scope of an agent tests its harness, with the calls of one model.
        """
        weights = sum(self._versions.served(model).canary is not None for model in {scope.model for scope in scopes})
        harnesses = self._tables[HARNESSES].items().values()
        agents = [(scope.tenant, scope.agent) for scope in scopes]
        return weights + sum(
            served_harnesses(versions_of(harnesses, *agent).values()).canary is not None for agent in agents
        )

    def _poll(self, timeout_s: float) -> bool:
        """Fold a batch; return True if there was one."""
        events = self._consumer.poll(_BATCH, timeout_s)
        for event in events:
            if event.record is not None:
                self.decisions.add(event.topic, event.record)
        return bool(events)
