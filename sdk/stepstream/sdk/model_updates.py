"""Iterate over updates of models: the state of now, then versions, decisions and workers as they change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stepstream.sdk.checkpoints import Subscription
from stepstream.topics.catalogue import CHECKPOINTS, ROLLOUTS, WORKER_STATUS
from stepstream.topics.ids import now_us
from stepstream.versions.updates import ModelUpdate, ModelUpdates

if TYPE_CHECKING:
    from stepstream.config import Settings

_MISSED_STATUSES = 3
"""Number of missed statuses after which a worker counts as gone."""


class ModelSubscription(Subscription[ModelUpdate]):
    """A blocking iterator, sync and async, of model updates. Close it, or use it as a context manager.

    Closing it, from any thread, ends the iteration.
    """

    topics = (CHECKPOINTS, ROLLOUTS, WORKER_STATUS)

    def __init__(self, settings: Settings, model: str | None) -> None:
        super().__init__(settings)
        self._updates = ModelUpdates(model)

    def _at_start(self, events: list[Any]) -> Iterator[ModelUpdate]:
        for _ in self._later(events):
            pass
        yield from self._updates.state(now_us(), _MISSED_STATUSES * self._settings.inference.status_every_s)

    def _later(self, events: list[Any]) -> Iterator[ModelUpdate]:
        folds: dict[str, Callable[[str, Any], Iterator[ModelUpdate]]] = {
            CHECKPOINTS: self._updates.checkpoint,
            ROLLOUTS: self._updates.rollout,
        }
        for event in events:
            if event.error is not None:
                continue
            if event.topic == WORKER_STATUS:
                yield from self._updates.worker(event.key, event.record, event.written_us)
            else:
                yield from folds[event.topic](event.key, event.record)


def subscribe_models(model: str | None = None, *, settings: Settings | None = None) -> ModelSubscription:
    """Iterate over the state of one or all models, then over each change, with `for` or `async for`.

    First comes one update `state` for each model and one update `worker` for each live worker.

    Args:
        model: default: all models.
        settings: default: those that `stepstream config` shows.

    Raises:
        KafkaUnavailable: while iterating, if no broker answers within `kafka.deadline_s`.
    """
    from stepstream.config import load

    return ModelSubscription(settings or load(), model)
