"""Record one attempt at one task: its steps, rewards, feedback, sub-agents and end."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import math
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from stepstream.sdk.context import Block, Blocks, current_value, enter_block, leave_block
from stepstream.sdk.handle import Id, TrajectoryHandle, TrajectoryInfo
from stepstream.sdk.identity_headers import identity_headers
from stepstream.sdk.messages import id_text, optional_text
from stepstream.sdk.recorder import Recorder, log_failure, never_raise, recorder
from stepstream.sdk.shared_prefix import PrefixTracker
from stepstream.sdk.step import Step, open_steps
from stepstream.topics.catalogue import FEEDBACK
from stepstream.topics.events import TrajectoryEnd, new_feedback
from stepstream.topics.ids import new_event_id, now_us

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Trajectory:
    """Steps, tools, rewards and sub-agents of one attempt. No method raises.

    Create it with `trajectory` or `sub_agent`.
    """

    def __init__(self, recorder: Recorder | None, trajectory_id: Id, info: TrajectoryInfo) -> None:
        """Without a recorder, record nothing."""
        self.id = id_text(trajectory_id)
        self.info = info
        self.is_recorded = recorder is not None
        """False if the SDK is switched off."""
        self.producer = recorder.producer if recorder is not None else ""
        self.prefixes = PrefixTracker()
        self.has_ended = False
        self._is_suspended = False
        self._open_blocks = 0
        self._lock = threading.Lock()
        self._recorder = recorder
        self._indices = itertools.count()
        self._last_index = -1
        self.uses_gateway = False
        """True after `headers`: the gateway records and counts the steps."""
        self.tool_versions: dict[str, str] = {}
        """Pinned version of each tool, by the newest response that `sdk.tool_versions` read; empty: none is pinned."""

    def step(
        self,
        messages: Any = (),
        *,
        model: str | None = "",
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        tools: Iterable[Any] = (),
    ) -> Step:
        """Return the next step, a context manager.

        Args:
            messages: the whole prompt, in OpenAI's shape, or one text. The SDK stores only its part that earlier steps
                do not contain.
            model: requested model.
            temperature: default 1.
            top_p: default 1.
            max_tokens: most tokens of the response.
            seed: seed of the sampling.
            sampling: further fields of the record `Sampling` by name, as `{"top_k": 20, "min_p": 0.05}`. Tokens that
                were sampled under a restriction are not trained on with importance weights, so record all of them.
            tools: definitions of the offered tools, in the API's shape. Give them with `prompt_token_ids`, which
                contain them: redaction of a definition then removes its tokens, too.
        """
        named = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
        given = {name: value for name, value in named.items() if value is not None}
        return Step(self, messages, model or "", {**(sampling or {}), **given}, tools)

    def sub_agent(
        self,
        agent: str = "",
        *,
        task_id: Id = None,
        group_id: Id = None,
        trajectory_id: Id = None,
        environment: str | None = None,
        harness_version: str | None = None,
    ) -> TrajectoryScope:
        """Return the scope of a child trajectory. Its caller is the current step, else the last one.

        The child inherits all fields that are not given, except the group.
        """
        optional = {"task_id": task_id, "environment": environment, "harness_version": harness_version}
        changes: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        changes |= {"agent": agent or self.info.agent, "group_id": group_id}

        def make() -> Trajectory:
            active = recorder()
            if active is None or not self.is_recorded:
                return UNRECORDED
            step = current_step()
            index = step.index if step is not None and step.trajectory is self else self.last_index
            # Unknown where the gateway counts the parent's steps; it then fills the newest one in.
            parent = {"parent_trajectory_id": self.id, "parent_step_index": index if index >= 0 else None}
            return open_trajectory(active, trajectory_id, TrajectoryInfo.of(**vars(self.info) | parent | changes))

        return TrajectoryScope(make)

    @never_raise
    def reward(self, name: str, value: float, *, source: str = "environment", step_index: int | None = None) -> None:
        """Record a number (or a boolean) of the reward specification, for the trajectory or one step."""
        self.feedback(name, value, source=source, step_index=step_index)

    @never_raise
    def feedback(
        self,
        name: str,
        value: float | None = None,
        *,
        category: str | None = None,
        comment: str | None = None,
        demonstration: Any = None,
        source: str = "user",
        step_index: int | None = None,
        tool_call_id: str | None = None,
        retracts: str | None = None,
    ) -> None:
        """Record feedback: a number, a category, a comment, or the response that the agent should have given."""
        if not self.is_recorded:
            return
        if not self.id:
            raise ValueError(f"feedback '{name}' needs the id of a trajectory")
        if not name or all(content is None for content in (value, category, comment, demonstration, retracts)):
            raise ValueError(f"feedback '{name}' needs a name and a value, category, comment or demonstration")
        if value is not None and not math.isfinite(value):
            raise ValueError(f"the value of feedback '{name}' is {value}: it must be a finite number")
        self._emit_feedback(
            name,
            value=None if value is None else float(value),
            category=optional_text(category),
            comment=optional_text(comment),
            demonstration=optional_text(demonstration),
            source=source,
            step_index=step_index,
            tool_call_id=tool_call_id or None,
            retracts=retracts,
        )

    @never_raise
    def end(self, kind: TrajectoryEnd = "terminated", *, error: str | None = None) -> None:
        """End the trajectory: `terminated` by the task or `truncated` by a limit. Leaving its block does this, too."""
        if self.has_ended or not self.is_recorded:
            return
        self.has_ended = True
        last = self._last_index if self._last_index >= 0 and not self.uses_gateway else None
        self._emit_feedback("end", category=error, source="environment", end=kind, last_step_index=last)

    def suspend(self) -> TrajectoryHandle:
        """Stop here, without an end, and return the handle with which `resume` continues, in any process.

        Leaving the block then does not end the trajectory. Steps that begin later are not recorded.
        """
        self._is_suspended = True
        return TrajectoryHandle(self.id, self.info, self._last_index + 1, self.prefixes.newest())

    def headers(self) -> dict[str, str]:
        """Return headers for model calls through the gateway, which then records and counts the steps.

        Give them to the client as default headers; for the calls of one step, see `Step.headers`. The SDK adds tools
        and rewards.
        """
        if not self.is_recorded:
            return {}
        self.uses_gateway = True
        return identity_headers(self.id, self.info)

    @never_raise
    def record_tool_use(self, name: str, step_index: int | None, call_id: str, error: str | None) -> None:
        """Record a tool's use as feedback, outside a step or where the gateway records the step."""
        self._emit_feedback(
            "tool",
            value=0.0 if error else 1.0,
            category=error,
            comment=name,
            source="environment",
            step_index=step_index,
            tool_call_id=call_id or None,
        )

    def next_index(self) -> int:
        """Assign the index of a new step.

        Raises:
            ValueError: the trajectory is suspended.
        """
        if self._is_suspended:
            raise ValueError(f"trajectory '{self.id}' is suspended: continue it with `sdk.resume(handle)`")
        self._last_index = index = next(self._indices)
        return index

    def reopen(self, info: TrajectoryInfo) -> None:
        """Continue the trajectory with `info`; its steps keep counting."""
        if self.has_ended:
            log.warning(
                "trajectory '%s' has ended: its further steps have no end; leave it with `suspend()` instead", self.id
            )
        self.info, self._is_suspended = info, False

    def resume(self, handle: TrajectoryHandle) -> None:
        """Continue after the steps of a handle, unless this process has recorded later ones."""
        self._is_suspended = False
        if handle.next_index > self._last_index + 1:
            self._indices = itertools.count(handle.next_index)
            self._last_index = handle.next_index - 1
            self.prefixes = PrefixTracker(handle.prefix)

    def enter(self) -> None:
        """Begin a block of the trajectory."""
        with self._lock:
            self._open_blocks += 1

    def leave(self, kind: type[BaseException] | None) -> None:
        """End a block of the trajectory, and after its last one the trajectory, unless it is suspended."""
        with self._lock:
            self._open_blocks -= 1
            is_last = self._open_blocks <= 0
        if is_last:
            self.prefixes.compact()
        if is_last and not self._is_suspended:
            self.end("terminated" if kind is None else "truncated", error=kind.__name__ if kind else None)

    @property
    def last_index(self) -> int:
        """Index of the step that began last; -1: none began."""
        return self._last_index

    @property
    def is_inherited(self) -> bool:
        """True if the process that this one was forked from began the trajectory."""
        return self._recorder is not None and self._recorder.is_inherited

    def step_fields(self) -> dict[str, Any]:
        """Return the fields that all steps of the trajectory share."""
        return dict(vars(self.info))

    def emit(self, topic: str, record: Any) -> None:
        """Send an event of this trajectory."""
        if self._recorder is not None:
            self._recorder.emit(topic, record)

    def _emit_feedback(self, name: str, **fields: Any) -> None:
        if self.is_recorded:
            info = self.info
            self.emit(
                FEEDBACK,
                new_feedback(
                    event_id=new_event_id(),
                    occurred_at_us=now_us(),
                    producer=self.producer,
                    tenant=info.tenant,
                    consent=info.consent,
                    user=info.user,
                    trajectory_id=self.id,
                    name=name,
                    **fields,
                ),
            )


def open_trajectory(active: Recorder, trajectory_id: Id, info: TrajectoryInfo) -> Trajectory:
    """Return a new trajectory, or the one of this name that the process recorded before, which then continues."""
    key = info.tenant, id_text(trajectory_id or uuid.uuid4())
    found = active.known_trajectories.find(key, lambda: Trajectory(active, key[1], info))
    found.reopen(info)
    return found


def resume_trajectory(active: Recorder, handle: TrajectoryHandle) -> Trajectory:
    """Return the trajectory of a handle."""
    found = open_trajectory(active, handle.trajectory_id, handle.info)
    found.resume(handle)
    return found


UNRECORDED = Trajectory(None, "", TrajectoryInfo())
"""Placeholder where no trajectory is recorded."""
open_trajectories: Blocks[Trajectory] = ContextVar("stepstream_trajectory", default=None)
"""Blocks of trajectories around the running code."""


def current_trajectory() -> Trajectory | None:
    """Return the trajectory whose block the running code is in; None: it is in none."""
    return current_value(open_trajectories)


def current_step() -> Step | None:
    """Return the step whose block the running code is in.

    A task that outlives the step's block still has the step, while the trajectory's block is open.
    """
    block = open_steps.get()
    step = None if block is None else block.value
    return step if step is not None and step.trajectory is current_trajectory() else None


class TrajectoryScope:
    """A context manager for one trajectory; as a decorator, it gives each call of the function a trajectory.

    An exception that leaves the block ends the trajectory as truncated, with the exception's class, and propagates.
    """

    def __init__(self, make: Callable[[], Trajectory]) -> None:
        self._make = make
        self._trajectory = UNRECORDED
        self._blocks: tuple[Block[Trajectory], Block[Step]] | None = None

    def __enter__(self) -> Trajectory:
        try:
            self._trajectory = self._make()
            if self._trajectory.is_recorded:
                self._trajectory.enter()
                self._blocks = enter_block(open_trajectories, self._trajectory), enter_block(open_steps, None)
        except Exception as error:
            log_failure(error)
            self._trajectory = UNRECORDED
        return self._trajectory

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._blocks is not None:
            leave_block(open_steps, self._blocks[1])
            leave_block(open_trajectories, self._blocks[0])
            self._blocks = None
            self._trajectory.leave(kind)

    async def __aenter__(self) -> Trajectory:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function with a trajectory for each call; `current()` returns it inside."""
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
