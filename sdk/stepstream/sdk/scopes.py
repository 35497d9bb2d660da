"""Opening trajectories: as a context manager, sync or async, or as a decorator of a function of either kind."""

import functools
import inspect
import logging
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast, overload

from stepstream.sdk.context import Block, enter, leave, step_here, steps, trajectories, trajectory_here
from stepstream.sdk.recorder import not_recorded, quiet, recorder
from stepstream.sdk.step import Step
from stepstream.sdk.trajectory import NOTHING, About, Id, Trajectory
from stepstream.topics.events import Consent, Track

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class TrajectoryScope:
    """`with` it for one trajectory, or decorate a function with it for one trajectory a call.

    An exception that leaves the block ends the trajectory as truncated, with the exception's class, and goes on.
    """

    def __init__(self, make: Callable[[], Trajectory]) -> None:
        self._make = make
        self._trajectory = NOTHING
        self._blocks: tuple[Block[Trajectory], Block[Step]] | None = None

    def __enter__(self) -> Trajectory:
        try:
            self._trajectory = self._make()
            if self._trajectory.recorded:
                self._blocks = enter(trajectories, self._trajectory), enter(steps, None)
        except Exception as error:
            not_recorded(error)
            self._trajectory = NOTHING
        return self._trajectory

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._blocks is not None:
            leave(steps, self._blocks[1])
            leave(trajectories, self._blocks[0])
            self._blocks = None
            self._trajectory.end("terminated" if kind is None else "truncated", error=kind.__name__ if kind else None)

    async def __aenter__(self) -> Trajectory:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, each of whose calls is a trajectory; `current()` gives it inside."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            log.error("%s is a generator: it is not recorded; use `with` inside it", function.__qualname__)
            return cast(Callable[P, T], function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def recorded(*args: P.args, **kwargs: P.kwargs) -> Any:
                with TrajectoryScope(self._make):
                    return await function(*args, **kwargs)

            return cast(Callable[P, T], recorded)

        @functools.wraps(function)
        def recorded_sync(*args: P.args, **kwargs: P.kwargs) -> T:
            with TrajectoryScope(self._make):
                return function(*args, **kwargs)

        return recorded_sync


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


def child_of(parent: Trajectory, trajectory_id: Id, **changes: Any) -> TrajectoryScope:
    """A sub-agent of `parent`; see `Trajectory.sub_agent`."""

    def make() -> Trajectory:
        active = recorder()
        if active is None or not parent.recorded:
            return NOTHING
        step = step_here()
        index = step.index if step is not None and step.trajectory is parent else parent.last_index
        return Trajectory(active, trajectory_id or uuid.uuid4(), parent.child(max(index, 0), **changes))

    return TrajectoryScope(make)


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
