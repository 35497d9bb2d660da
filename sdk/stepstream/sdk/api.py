"""Opening trajectories: as a context manager, sync or async, or as a decorator of a function of either kind."""

import logging
import uuid
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from stepstream.sdk.context import step_here, trajectory_here
from stepstream.sdk.recorder import quiet, recorder
from stepstream.sdk.step import Step
from stepstream.sdk.trajectory import NOTHING, About, Id, Trajectory, TrajectoryScope
from stepstream.topics.events import Consent, Track

log = logging.getLogger(__name__)

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
    """One attempt at one task: a context manager (sync or async) that gives a `Trajectory`, or a decorator.

    Ids may be anything that has a text, as numbers and UUIDs.

    Args:
        task_id: what is attempted; a function, if it is a decorator without parentheses.
        agent: name of the agent; default `sdk.agent`.
        group_id: ties the attempts that are compared with one another.
        trajectory_id: default: a new one.
        environment: where the agent works; names the reward specification.
        harness_version: of everything around the model.
        split: `train`, or `eval` for what is measured and never trained on.
        track: `stable` or `canary`.
        user: person that the agent works for.
        tenant: default `sdk.tenant`.
        consent: default `sdk.consent`.
    """

    def make() -> Trajectory:
        active = recorder()
        if active is None:
            return NOTHING
        sdk = active.settings.sdk
        about = About.of(
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
        return Trajectory(active, trajectory_id or uuid.uuid4(), about)

    return TrajectoryScope(make)(task_id) if callable(task_id) else TrajectoryScope(make)


@overload
def sub_agent(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def sub_agent(agent: str = "", *, task_id: Id = None) -> TrajectoryScope: ...
def sub_agent(agent: Any = "", *, task_id: Id = None) -> Any:
    """A child of the trajectory that runs where the block is entered or the decorated function called.

    Outside any it is a trajectory of its own.
    """

    def make() -> Trajectory:
        parent = trajectory_here()
        if parent is None:
            return trajectory(task_id, agent=named)._make()
        return parent.sub_agent(named, task_id=task_id)._make()

    named = "" if callable(agent) else agent
    return TrajectoryScope(make)(agent) if callable(agent) else TrajectoryScope(make)


def current() -> Trajectory:
    """The trajectory that the running code belongs to; outside any, one that records nothing."""
    return trajectory_here() or NOTHING


def current_step() -> Step | None:
    """The step that the running code belongs to."""
    return step_here()


@quiet
def feedback(
    trajectory_id: Id,
    name: str,
    value: float | None = None,
    *,
    tenant: str = "",
    consent: Consent | None = None,
    user: Id = None,
    **more: Any,
) -> None:
    """Says something about a trajectory that ran elsewhere or long ago; `more` as in `Trajectory.feedback`."""
    active = recorder()
    if active is not None:
        sdk = active.settings.sdk
        about = About.of(tenant=tenant or sdk.tenant, consent=consent or sdk.consent, user=user)
        Trajectory(active, trajectory_id, about).feedback(name, value, **more)
