"""Choose the track of each trajectory, `stable` or `canary`, from the topic `rollouts`. Pure: `app` passes the table.

The track is a hash of the trajectory's identity, so every gateway and every process chooses the same one without a
table of trajectories. A trajectory in the context cache keeps its first track when the share changes. The end of a
canary moves its trajectories to `stable` at once, and another canary of the model does not take them.
"""

from typing import Any, Protocol

from stepstream.services.gateway.context.tree import Trajectory
from stepstream.topics.events import Track
from stepstream.versions.rollouts import served_versions, track_of


class RolloutTable(Protocol):
    """The newest record of `rollouts` by model; `stepstream.topics.table.Table` follows the topic."""

    def get(self, key: str) -> Any:
        """Return the record of a model, or None."""
        ...


class TrackChooser:
    """Chooses tracks."""

    def __init__(self, rollouts: RolloutTable) -> None:
        self._rollouts = rollouts

    def choose(self, trajectory: Trajectory, model: str) -> tuple[Track, int | None]:
        """Return the track of a trajectory's next call of a model, and the model's canary version if it has one."""
        rollout = self._rollouts.get(model)
        canary = None if rollout is None else rollout["canary_version"]
        if canary is None:
            return "stable", None
        share = served_versions((), rollout).canary_share
        if not share:  # it answers recorded prompts only
            return "stable", canary
        answered = trajectory.track
        if answered is None or answered.model != model:
            return track_of(trajectory.tenant, trajectory.id, model, share), canary
        return answered.track if answered.canary_version == canary else "stable", canary
