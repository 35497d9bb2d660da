"""Follow the topics `checkpoints` and `rollouts` in threads, and answer which version serves a model's tracks."""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from stepstream.config import Settings
from stepstream.topics.catalogue import CHECKPOINTS, ROLLOUTS
from stepstream.topics.events import Checkpoint, Rollout
from stepstream.topics.table import Table, wait_all_current
from stepstream.versions.layout import read_name
from stepstream.versions.rollouts import NOTHING_SERVED, ModelVersions, ServedVersions

_log = logging.getLogger(__name__)


class VersionFollower(AbstractContextManager["VersionFollower"]):
    """The newest checkpoints and rollouts of every model. Any thread may ask; no question blocks on Kafka.

    While Kafka or the registry is away, it answers with what it read before.
    """

    def __init__(self, settings: Settings) -> None:
        """Start to follow; return at once. See `wait_current` and `is_current`."""
        self._lock = threading.Lock()
        self._models: dict[str, ModelVersions] = {}
        self._served: dict[str, ServedVersions] = {}
        self._callbacks: list[Callable[[str], None]] = []
        self._tables = (
            Table(settings, CHECKPOINTS, on_change=self._checkpoint_changed),
            Table(settings, ROLLOUTS, on_change=self._rollout_changed),
        )

    def served(self, model: str) -> ServedVersions:
        """Return the versions that serve a model, as the log says; a model without events has none."""
        served = self._served.get(model)
        if served is None:
            with self._lock:
                state = self._models.get(model)
                served = NOTHING_SERVED if state is None else state.served
                self._served[model] = served
        return served

    def checkpoint(self, model: str, version: int) -> Checkpoint | None:
        """Return the newest event of a version; None: it was never published."""
        with self._lock:
            state = self._models.get(model)
            return None if state is None else state.checkpoints.get(version)

    def checkpoints(self, model: str) -> dict[int, Checkpoint]:
        """Return the newest event of each version of a model, removed ones too."""
        with self._lock:
            state = self._models.get(model)
            return {} if state is None else dict(state.checkpoints)

    def rollout(self, model: str) -> Rollout | None:
        """Return the decision in force; None: none was made."""
        with self._lock:
            state = self._models.get(model)
            return None if state is None else state.rollout

    def snapshot(self, model: str) -> ModelVersions:
        """Return a copy of a model's fold, on which a decision can be tried."""
        copy = ModelVersions()
        with self._lock:
            state = self._models.get(model)
            if state is not None:
                for version, checkpoint in state.checkpoints.items():
                    copy.apply_checkpoint(version, checkpoint)
                copy.apply_rollout(state.rollout)
        return copy

    def models(self) -> list[str]:
        """Return the names of all models with events, sorted."""
        with self._lock:
            return sorted(self._models)

    @property
    def is_current(self) -> bool:
        """True if all events from before the start have been read."""
        return all(table.current for table in self._tables)

    def wait_current(self, timeout_s: float) -> bool:
        """Block until every present event has been read; return False after `timeout_s` seconds."""
        return wait_all_current(self._tables, timeout_s)

    def on_change(self, callback: Callable[[str], None]) -> None:
        """Call `callback(model)` in a thread of this class after each later event of a model."""
        self._callbacks.append(callback)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the threads."""
        for table in self._tables:
            table.close()

    def _checkpoint_changed(self, key: str, checkpoint: Checkpoint | None) -> None:
        named = read_name(key) if checkpoint is None else (checkpoint["model"], checkpoint["version"])
        if named is None:
            _log.warning("ignored the deletion of the key '%s' of %s, which is not model@version", key, CHECKPOINTS)
            return
        model, version = named
        with self._lock:
            self._state(model).apply_checkpoint(version, checkpoint)
        self._notify(model)

    def _rollout_changed(self, key: str, rollout: Rollout | None) -> None:
        model = key if rollout is None else rollout["model"]
        with self._lock:
            self._state(model).apply_rollout(rollout)
        self._notify(model)

    def _state(self, model: str) -> ModelVersions:
        """Return a model's fold, which is about to change; call it with the lock."""
        self._served.pop(model, None)
        return self._models.setdefault(model, ModelVersions())

    def _notify(self, model: str) -> None:
        for callback in list(self._callbacks):
            callback(model)
