"""Follows a model's published versions and its learner's decisions, to know how far the learner has come."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from stepstream.config import Settings
from stepstream.jobs.rewards.spec_lookup import REWARD_SPECS
from stepstream.services.fleet.outcome_reward import Paid
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event, EventConsumer

log = logging.getLogger(__name__)

TOPIC = "checkpoints"
DECISIONS = "training-decisions"
_REPLACED = ("superseded", "trained_on_older_revision")
"""Reasons that tell of one label of an attempt, not of the attempt."""


class Lineage:
    """Counts versions from the root of their lineage. Pure."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._depths: dict[int, int] = {}

    def add(self, checkpoint: Mapping[str, Any]) -> int | None:
        """The depth of this checkpoint, 0 for a root; None for another model's."""
        if checkpoint["model"] != self._model:
            return None
        parent = checkpoint["parent_version"]
        depth = 0 if parent is None else self._depths.get(parent, -1) + 1
        self._depths[checkpoint["version"]] = depth
        return depth


class VersionFollower:
    """A thread that tells the depth of the newest version of the fleet's model, and of each that follows.

    It also tells what its learner decides about groups from now on, and whether outcomes are whole rewards.
    """

    def __init__(
        self,
        settings: Settings,
        paid: Paid,
        advance: Callable[[int], object],
        decided: Callable[[str, str, str], object],
        outcome_alone: Callable[[bool], object],
        ready: Callable[[], object],
        fail: Callable[[Exception], object],
    ) -> None:
        """All are called from the thread: `ready` after the versions that were there, `fail` before it ends early.

        `decided` gets the group of an attempt, the attempt, and why it was dropped, nothing where it was trained on;
        `outcome_alone` what `paid` says after each change of a reward specification.
        """
        self._settings = settings
        self._paid = paid
        self._outcome_alone = outcome_alone
        self._advance = advance
        self._decided = decided
        self._ready = ready
        self._fail = fail
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="versions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join(timeout=5.0)

    def _follow(self) -> None:
        lineage = Lineage(self._settings.fleet.model)
        try:
            with EventConsumer(self._settings.kafka, Codec(self._settings.schema_registry)) as consumer:
                ends = consumer.end_offsets(DECISIONS)
                consumer.follow(
                    [TOPIC, DECISIONS, REWARD_SPECS],
                    {(DECISIONS, partition): end for partition, end in ends.items()},
                )
                told = False
                while not self._stopping.is_set():
                    if not told and consumer.caught_up():
                        self._ready()
                        told = True
                    for event in consumer.poll(100, 0.2):
                        if event.topic == REWARD_SPECS:
                            self._outcome_alone(self._specification(event))
                        elif event.record is None:
                            continue
                        elif event.topic == DECISIONS:
                            self._tell(event.record)
                        elif (depth := lineage.add(event.record)) is not None:
                            self._advance(depth)
        except Exception as error:  # the fleet's own loop ends the process with it
            self._fail(error)

    def _specification(self, event: Event) -> bool:
        if event.error is not None:
            return self._paid.unreadable(event.key)
        return self._paid.note(event.key, event.record)

    def _tell(self, decision: Mapping[str, Any]) -> None:
        ours = decision["model"] == self._settings.fleet.model and decision["group_id"] is not None
        if ours and decision["reason"] not in _REPLACED:
            reason = "" if decision["outcome"] == "trained" else decision["reason"]
            self._decided(decision["group_id"], decision["trajectory_id"], reason)
