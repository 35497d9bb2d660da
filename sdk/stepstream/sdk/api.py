"""Open trajectories, as context managers or decorators, and send feedback about finished ones."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from stepstream.sdk.handle import Id, TrajectoryHandle, TrajectoryInfo
from stepstream.sdk.recorder import never_raise, recorder
from stepstream.sdk.trajectory import (
    UNRECORDED,
    Trajectory,
    TrajectoryScope,
    current_trajectory,
    open_trajectory,
    resume_trajectory,
)
from stepstream.topics.events import Consent, Track

P = ParamSpec("P")
T = TypeVar("T")


@overload
def trajectory(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def trajectory(
    task_id: Id = "",
    *,
    agent: str = "",
    group_id: Id = None,
    trajectory_id: Id = None,
    environment: str = "",
    harness_version: str = "",
    split: str = "train",
    track: Track = "stable",
    user: Id = None,
    tenant: str = "",
    consent: Consent | None = None,
) -> TrajectoryScope: ...
def trajectory(
    task_id: Any = "",
    *,
    agent: str = "",
    group_id: Id = None,
    trajectory_id: Id = None,
    environment: str = "",
    harness_version: str = "",
    split: str = "train",
    track: Track = "stable",
    user: Id = None,
    tenant: str = "",
    consent: Consent | None = None,
) -> Any:
    """Open a trajectory: one attempt at one task. A context manager (sync or async) or a decorator.

    Ids may be texts, numbers or UUIDs.

    Args:
        task_id: the task; or the function, for a decorator without parentheses.
        agent: name of the agent; default `sdk.agent`.
        group_id: attempts with the same group are compared with one another.
        trajectory_id: default: a new id. An id that this process recorded before continues that trajectory.
        environment: environment of the agent; names the reward specification.
        harness_version: version of everything around the model.
        split: `train`, or `eval` for trajectories that are measured and never trained on.
        track: `stable` or `canary`.
        user: person whom the agent works for.
        tenant: default `sdk.tenant`.
        consent: default `sdk.consent`.
    """

    def make() -> Trajectory:
        active = recorder()
        if active is None:
            return UNRECORDED
        sdk = active.settings.sdk
        info = TrajectoryInfo.of(
            agent=agent or sdk.agent,
            tenant=tenant or sdk.tenant,
            consent=consent or sdk.consent,
            task_id="" if callable(task_id) else task_id,
            group_id=group_id,
            environment=environment,
            harness_version=harness_version,
            split=split,
            track=track,
            user=user,
        )
        return open_trajectory(active, trajectory_id, info)

    return TrajectoryScope(make)(task_id) if callable(task_id) else TrajectoryScope(make)


def resume(handle: TrajectoryHandle | str) -> TrajectoryScope:
    """Continue a suspended trajectory, in any process: a context manager or a decorator, as `trajectory`.

    Args:
        handle: result of `Trajectory.suspend`, or its JSON.
    """

    def make() -> Trajectory:
        active = recorder()
        given = TrajectoryHandle.from_json(handle) if isinstance(handle, str) else handle
        return UNRECORDED if active is None or not given.trajectory_id else resume_trajectory(active, given)

    return TrajectoryScope(make)


@overload
def sub_agent(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def sub_agent(agent: str = "", *, task_id: Id = None) -> TrajectoryScope: ...
def sub_agent(agent: Any = "", *, task_id: Id = None) -> Any:
    """Open a child of the current trajectory, or a new trajectory outside any. A context manager or a decorator.

    The current trajectory is looked up when the block begins or the decorated function is called.
    """

    def make() -> Trajectory:
        parent = current_trajectory()
        if parent is None:
            return trajectory(task_id, agent=name)._make()
        return parent.sub_agent(name, task_id=task_id)._make()

    name = "" if callable(agent) else agent
    return TrajectoryScope(make)(agent) if callable(agent) else TrajectoryScope(make)


def current() -> Trajectory:
    """Return the trajectory of the running code; outside any, one that records nothing."""
    return current_trajectory() or UNRECORDED


@never_raise
def feedback(
    trajectory_id: Id,
    name: str,
    value: float | None = None,
    *,
    tenant: str = "",
    consent: Consent | None = None,
    user: Id = None,
    **fields: Any,
) -> None:
    """Send feedback about a trajectory of another process or an earlier time; `fields` as in `Trajectory.feedback`."""
    active = recorder()
    if active is not None:
        sdk = active.settings.sdk
        info = TrajectoryInfo.of(tenant=tenant or sdk.tenant, consent=consent or sdk.consent, user=user)
        Trajectory(active, trajectory_id, info).feedback(name, value, **fields)
