"""Follow a model's versions, its learner's decisions and the reward specifications from Kafka."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from stepstream.config import Settings
from stepstream.services.fleet.outcome_reward import OutcomeReward
from stepstream.topics.catalogue import CHECKPOINTS, REWARD_SPECS, TRAINING_CONTROL, TRAINING_DECISIONS
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event, EventConsumer

log = logging.getLogger(__name__)

_REASONS_OF_ONE_LABEL = ("superseded", "trained_on_older_revision")
"""Reasons that concern one label of an attempt, not the attempt."""


class LearnerWatcher:
    """A thread that reads the topics and calls back on each change."""

    def __init__(
        self,
        settings: Settings,
        outcome_reward: OutcomeReward,
        advance: Callable[[int], object],
        add_decision: Callable[[str, str, str], object],
        set_outcome_only: Callable[[bool], object],
        set_task_weights: Callable[[Mapping[str, float]], object],
        ready: Callable[[], object],
        fail: Callable[[Exception], object],
    ) -> None:
        """Start the thread, which makes all the calls.

        Args:
            settings: Kafka, the registry and the fleet's model.
            outcome_reward: applies each change of a reward specification.
            advance: gets the depth of the newest version of the fleet's model and of each later one.
            add_decision: gets each decision made from now on: group, attempt and drop reason (empty: trained on).
            set_outcome_only: gets the result of `outcome_reward` after each change of a reward specification.
            set_task_weights: gets the weights of task families, now and after each change.
            ready: called once, after the versions that existed at the start.
            fail: called before the thread ends early.
        """
        self._settings = settings
        self._outcome_reward = outcome_reward
        self._set_outcome_only = set_outcome_only
        self._set_task_weights = set_task_weights
        self._advance = advance
        self._add_decision = add_decision
        self._ready = ready
        self._fail = fail
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="versions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; blocks for up to 5 s."""
        self._stopping.set()
        self._thread.join(timeout=5.0)

    def _follow(self) -> None:
        lineage = Lineage(self._settings.fleet.model)
        try:
            with EventConsumer(self._settings.kafka, Codec(self._settings)) as consumer:
                ends = consumer.end_offsets(TRAINING_DECISIONS)
                consumer.follow(
                    [CHECKPOINTS, TRAINING_DECISIONS, REWARD_SPECS, TRAINING_CONTROL],
                    {(TRAINING_DECISIONS, partition): end for partition, end in ends.items()},
                )
                is_ready = False
                while not self._stopping.is_set():
                    if not is_ready and consumer.is_caught_up():
                        self._ready()
                        is_ready = True
                    for event in consumer.poll(100, 0.2):
                        if event.topic == REWARD_SPECS:
                            self._set_outcome_only(self._apply_specification(event))
                        elif event.record is None:
                            continue
                        elif event.topic == TRAINING_CONTROL:
                            self._pass_weights(event.record)
                        elif event.topic == TRAINING_DECISIONS:
                            self._pass_decision(event.record)
                        elif (depth := lineage.add(event.record)) is not None:
                            self._advance(depth)
        except Exception as error:  # the fleet's own loop then ends the process
            self._fail(error)

    def _apply_specification(self, event: Event) -> bool:
        if event.error is not None:
            return self._outcome_reward.add_unreadable(event.key)
        return self._outcome_reward.add(event.key, event.record)

    def _pass_weights(self, control: Mapping[str, Any]) -> None:
        if (control["tenant"], control["model"]) == (self._settings.gateway.tenant, self._settings.fleet.model):
            self._set_task_weights(control["task_weights"])

    def _pass_decision(self, decision: Mapping[str, Any]) -> None:
        is_own = is_of_fleet(decision, self._settings.fleet.model, self._settings.gateway.tenant)
        if is_own and decision["reason"] not in _REASONS_OF_ONE_LABEL:
            reason = "" if decision["outcome"] == "trained" else decision["reason"]
            self._add_decision(decision["group_id"], decision["trajectory_id"], reason)


def is_of_fleet(decision: Mapping[str, Any], model: str, tenant: str) -> bool:
    """Return True if a decision is about a group of the fleet, whose calls the gateway records under `tenant`."""
    return decision["model"] == model and decision["tenant"] == tenant and decision["group_id"] is not None


class Lineage:
    """Counts versions from the root of their lineage. Pure."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._depths: dict[int, int] = {}

    def add(self, checkpoint: Mapping[str, Any]) -> int | None:
        """Return the checkpoint's depth, 0 for a root; None for another model's."""
        if checkpoint["model"] != self._model:
            return None
        parent = checkpoint["parent_version"]
        depth = 0 if parent is None else self._depths.get(parent, -1) + 1
        self._depths[checkpoint["version"]] = depth
        return depth
