"""Choose the track of each trajectory, `stable` or `canary`, from the topic `rollouts`. Pure: `app` passes the table.

The track is a hash of the trajectory's identity, so every gateway and every process chooses the same one without a
table of trajectories. A trajectory in the context cache keeps its first track when the share changes. The end of a
canary moves its trajectories to `stable` at once.
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

    def choose(self, trajectory: Trajectory, model: str) -> Track:
        """Return the track of a trajectory's next call of a model."""
        rollout = self._rollouts.get(model)
        if rollout is None or rollout["canary_version"] is None:
            return "stable"
        share = served_versions((), rollout).canary_share
        if not share:  # it answers recorded prompts only; the trajectory may remember an earlier canary
            return "stable"
        return trajectory.track or track_of(trajectory.tenant, trajectory.id, model, share)
