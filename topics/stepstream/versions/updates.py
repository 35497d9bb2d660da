"""Turn the events of `checkpoints`, `rollouts` and `worker-status` into updates of models: what changed, and the state.

This is the public interface of model updates: `stepstream watch`, `sdk.subscribe_models` and `examples/node/models.js`
give the same fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from stepstream.topics.events import Checkpoint, Rollout, Track, WorkerStatus
from stepstream.versions.layout import read_name
from stepstream.versions.rollouts import NOTHING_SERVED, ModelVersions, ServedVersions
from stepstream.versions.worker_agreement import live_workers, served_tracks

Change = Literal[
    "state", "published", "removed", "promote", "rollback", "canary", "pin", "unpin", "follow", "decided", "worker"
]


@dataclass(frozen=True, slots=True)
class ModelUpdate:
    """One change of a model, and the versions that serve it afterwards as the log says."""

    change: Change
    """`state`: the state at the start; `published`, `removed`: a version; `worker`: the state of a worker; else the
    action of a rollout, `decided` if it names none."""
    model: str
    served: ServedVersions
    """The decision after the change."""
    occurred_at_us: int = 0
    """Time of the event, in microseconds since the Unix epoch; 0 for `state`."""
    version: int | None = None
    """Version that was published or removed, or that the decision is about; None: none."""
    worker: str = ""
    """Name of the worker; empty for all but `worker`."""
    state: str = ""
    """State of the worker."""
    tracks: dict[Track, int] = field(default_factory=dict)
    """Versions that the worker serves, by track."""
    reason: str = ""
    """Reason of a decision, of a removal, or of a worker's refusal."""
    author: str = ""
    """Person or program that decided."""

    def fields(self) -> dict[str, Any]:
        """Return it as a JSON object, without fields that say nothing."""
        served = self.served
        values: dict[str, Any] = {
            "change": self.change,
            "model": self.model,
            "version": self.version,
            "worker": self.worker,
            "state": self.state,
            "tracks": self.tracks if self.change == "worker" else None,
            "stable": served.stable,
            "canary": served.canary,
            "canary_share": served.canary_share if served.canary is not None else None,
            "follows_newest": served.follows_newest,
            "newest": served.newest,
            "pinned": sorted(served.pinned) or None,
            "reason": self.reason,
            "author": self.author,
            "occurred_at_us": self.occurred_at_us or None,
        }
        return {name: value for name, value in values.items() if value is not None and value != ""}


class ModelUpdates:
    """The fold of the three topics' events to updates. Not thread-safe."""

    def __init__(self, model: str | None = None) -> None:
        """Look at one model; None: at all."""
        self._model = model
        self._models: dict[str, ModelVersions] = {}
        self._workers: dict[str, WorkerStatus] = {}
        self._written_us: dict[str, int] = {}

    def state(self, now_us: int, silent_s: float) -> Iterator[ModelUpdate]:
        """Yield the state: one `state` for each model, and one `worker` for each live worker.

        Args:
            now_us: the time now, in microseconds since the Unix epoch.
            silent_s: a worker without a status for longer is not live.
        """
        for model, versions in sorted(self._models.items()):
            yield ModelUpdate("state", model, versions.served, version=versions.served.stable)
        for model in sorted({status["model"] for status in self._workers.values()}):
            for status in live_workers(self._workers.values(), model, now_us, silent_s, self._written_us.get):
                yield self._worker_update(status)

    def checkpoint(self, key: str, checkpoint: Checkpoint | None) -> Iterator[ModelUpdate]:
        """Apply a record of `checkpoints`; None: its key was deleted."""
        named = read_name(key) if checkpoint is None else (checkpoint["model"], checkpoint["version"])
        if named is None or not self._is_wanted(named[0]):
            return
        model, version = named
        versions = self._models.setdefault(model, ModelVersions())
        before = versions.checkpoints.get(version)
        versions.apply_checkpoint(version, checkpoint)
        was_removed = before is None or before["removed_at_us"] is not None
        if checkpoint is None:
            if not was_removed:
                yield ModelUpdate("removed", model, versions.served, version=version)
        elif checkpoint["removed_at_us"] is not None:
            if not was_removed:
                time_us, why = checkpoint["removed_at_us"], checkpoint["removal_reason"]
                yield ModelUpdate("removed", model, versions.served, time_us, version, reason=why)
        elif was_removed or before is None or before["event_id"] != checkpoint["event_id"]:
            yield ModelUpdate("published", model, versions.served, checkpoint["occurred_at_us"], version)

    def rollout(self, key: str, rollout: Rollout | None) -> Iterator[ModelUpdate]:
        """Apply a record of `rollouts`; None: its key was deleted, so that the model follows its newest version."""
        model = key if rollout is None else rollout["model"]
        if not self._is_wanted(model):
            return
        versions = self._models.setdefault(model, ModelVersions())
        before, known = versions.served, versions.rollout
        versions.apply_rollout(rollout)
        served = versions.served
        if rollout is None:
            if known is not None:
                yield ModelUpdate("follow", model, served, version=served.stable)
            return
        if known is not None and known["event_id"] == rollout["event_id"]:
            return
        change = _change_of(rollout["action"])
        about = _version_of(change, before, served)
        time_us, why, author = rollout["occurred_at_us"], rollout["reason"], rollout["author"]
        yield ModelUpdate(change, model, served, time_us, about, reason=why, author=author)

    def worker(self, key: str, status: WorkerStatus | None, written_us: int | None = None) -> Iterator[ModelUpdate]:
        """Apply a record of `worker-status`; a status that only repeats yields nothing.

        Args:
            key: key of the record.
            status: None: the key was deleted.
            written_us: time at which the broker wrote it; None: unknown, so that the time in the status counts.
        """
        before = self._workers.pop(key, None)
        self._written_us.pop(key, None)
        if status is None or not self._is_wanted(status["model"]):
            return
        self._workers[key] = status
        if written_us is not None:
            self._written_us[key] = written_us
        if before is None or _worker_facts(before) != _worker_facts(status):
            yield self._worker_update(status)

    def _is_wanted(self, model: str) -> bool:
        return self._model is None or model == self._model

    def _worker_update(self, status: WorkerStatus) -> ModelUpdate:
        versions = self._models.get(status["model"])
        return ModelUpdate(
            "worker",
            status["model"],
            NOTHING_SERVED if versions is None else versions.served,
            status["occurred_at_us"],
            worker=status["worker_id"],
            state=status["state"],
            tracks={one["track"]: one["version"] for one in served_tracks(status)},
            reason=status["reason"] or "",
        )


def _worker_facts(status: WorkerStatus) -> tuple[Any, ...]:
    return status["model"], status["state"], status["reason"], served_tracks(status)


def _change_of(action: str) -> Change:
    for change in ("promote", "rollback", "canary", "pin", "unpin", "follow"):
        if action == change:
            return change
    return "decided"


def _version_of(change: Change, before: ServedVersions, after: ServedVersions) -> int | None:
    """Return the version that a decision is about; None: it ended a canary."""
    if change in ("pin", "unpin"):
        return next(iter(before.pinned ^ after.pinned), None)
    return after.canary if change == "canary" else after.stable
