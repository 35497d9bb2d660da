"""Find trajectories by tenant and id, also those that earlier releases saved, or decided about, by the id alone.

In those releases, an id belonged to the tenant whose step used it first. So a trajectory that they saved keeps its
name, and one of their decisions, which has no tenant, is about the trajectory of that tenant. Where such a decision
comes before the first step, it is collected in a trajectory without an owner, until the step comes.
"""

from collections.abc import Callable

from stepstream.jobs.labels.trajectory_state import TrajectoryState
from stepstream.jobs.labels.trajectory_store import name_of
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.ids import DEFAULT_TENANT, trajectory_name

_FIRST_TENANT = b"t"
"""Prefix of keys: the tenant whose step used an id first, by the id. It is recorded while state is rebuilt, since only
then decisions of earlier releases follow."""

Saved = Callable[[bytes], TrajectoryState | None]
"""Returns the trajectory of a name; None: there is none."""


def find_trajectory(
    tenant: str | None, trajectory_id: str, saved: Saved, changes: Changes
) -> tuple[bytes, TrajectoryState]:
    """Return the name and the trajectory of an event; a new one if none is saved. `tenant` None: a decision without."""
    if tenant is None:
        return _find_without_tenant(trajectory_id, saved, changes)
    name = trajectory_name(tenant, trajectory_id)
    trajectory = saved(name)
    if trajectory is None:
        by_id = name_of(trajectory_id)
        earlier = saved(by_id)
        if earlier is not None and earlier.owner == tenant:
            return by_id, earlier
    return name, trajectory or TrajectoryState(trajectory_id, tenant)


def _find_without_tenant(trajectory_id: str, saved: Saved, changes: Changes) -> tuple[bytes, TrajectoryState]:
    by_id = name_of(trajectory_id)
    first = changes.get(_FIRST_TENANT + by_id)
    tenant = DEFAULT_TENANT if first is None else first.decode("utf-8", "surrogatepass")
    name = trajectory_name(tenant, trajectory_id)
    earlier = saved(by_id) if first is None else None
    trajectory = saved(name) if earlier is None else None
    if trajectory is not None and trajectory.indices:
        return name, trajectory
    return by_id, earlier or TrajectoryState(trajectory_id)


def claim_id(
    name: bytes, trajectory: TrajectoryState, saved: Saved, changes: Changes, *, rebuilding: bool
) -> TrajectoryState | None:
    """Record at the first step of a trajectory whose id it is; return the trajectory without owner of that id, or None.

    None is returned as well if another tenant used the id first.
    """
    assert trajectory.owner is not None
    by_id = name_of(trajectory.trajectory_id)
    earlier = saved(by_id)
    if name == by_id or (earlier is not None and earlier.owner is not None):
        return None
    key = _FIRST_TENANT + by_id
    if changes.get(key) is not None:
        return None
    if rebuilding or earlier is not None:
        changes.put(key, trajectory.owner.encode("utf-8", "surrogatepass"))
    return earlier


def release_id(trajectory: TrajectoryState, changes: Changes) -> None:
    """Remove what `claim_id` recorded, when the trajectory is deleted."""
    key = _FIRST_TENANT + name_of(trajectory.trajectory_id)
    if trajectory.owner is not None and changes.get(key) == trajectory.owner.encode("utf-8", "surrogatepass"):
        changes.delete(key)


def hand_over(unowned: TrajectoryState, tenant: str, of_tenant: Callable[[str], TrajectoryState]) -> None:
    """Give the decisions of a trajectory without owner to a tenant's, and each feedback to its own tenant's.

    Args:
        unowned: the trajectory without owner, with all entries loaded.
        tenant: whose step used the id first.
        of_tenant: returns a tenant's trajectory of this id, with all entries loaded.
    """
    of_tenant(tenant).take_decisions(unowned)
    for source, entry in sorted(unowned.feedback.items(), key=lambda item: int(item[1]["slot"])):
        of_tenant(entry["tenant"] or tenant).take_feedback(source, entry, unowned.ends.get(entry["id"]))
