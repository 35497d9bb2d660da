"""Follow what is decided about the learner's model: whether it trains, on which labels, and what was taken back."""

import logging
from contextlib import AbstractContextManager
from typing import cast

from stepstream.config import Settings
from stepstream.core.process import Stop
from stepstream.learner import metrics
from stepstream.topics.catalogue import ROLLOUTS, TRAINING_CONTROL
from stepstream.topics.events import Rollout
from stepstream.topics.table import Table, wait_all_current

log = logging.getLogger(__name__)

_READ_S = 5.0
"""Time between two looks at a stop, and two warnings, while the decisions are not read."""


class ModelControl(AbstractContextManager["ModelControl"]):
    """Newest decisions about one model. Only `wait_read` blocks; while Kafka is away, the decisions stay."""

    def __init__(self, settings: Settings) -> None:
        """Start to follow the topics; return at once. See `wait_read`."""
        self._model = settings.learner.model
        self._training = Table(settings, TRAINING_CONTROL)
        self._rollouts = Table(settings, ROLLOUTS)

    def wait_read(self, stop: Stop) -> bool:
        """Block until the decisions from before the start have been read; return False if `stop` is set first.

        Without them, a learner that starts in a rollback would train from the version that was taken back.
        """
        tables = (self._training, self._rollouts)
        while not wait_all_current(tables, _READ_S):
            faults = "; ".join(table.fault for table in tables if table.fault)
            log.warning("waiting for the decisions about '%s': %s", self._model, faults or "the log is not read yet")
            if stop:
                return False
        return True

    @property
    def paused(self) -> bool:
        """True while the newest decision of a tenant pauses the model's training; it sets the metric, too."""
        records = self._training.items().values()
        paused = any(one["paused"] for one in records if one["model"] == self._model)
        metrics.PAUSED.set(paused)
        return paused

    @property
    def excluded_specs(self) -> frozenset[str]:
        """Reward specifications whose labels are not trained on, as the newest decision of any tenant says."""
        records = self._training.items().values()
        return frozenset(
            spec for one in records if one["model"] == self._model for spec in one["excluded_reward_specs"]
        )

    @property
    def rollout(self) -> Rollout | None:
        """Newest rollout of the model; None: its stable version follows the newest one."""
        return cast(Rollout | None, self._rollouts.get(self._model))

    @property
    def taken_back(self) -> frozenset[int]:
        """Versions that were taken back for harm."""
        rollout = self.rollout
        return frozenset() if rollout is None else frozenset(rollout["taken_back_versions"])

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop to follow."""
        self._training.close()
        self._rollouts.close()
