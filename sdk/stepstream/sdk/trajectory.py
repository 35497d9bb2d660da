"""One attempt at one task, and everything that is said about it."""

from __future__ import annotations

import itertools
import logging
import math
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, get_args
from urllib.parse import quote

from stepstream.sdk.messages import name_of, optional_text
from stepstream.sdk.recorder import Recorder, quiet
from stepstream.sdk.shared_prefix import PrefixTracker
from stepstream.sdk.step import Step
from stepstream.topics.events import Consent, Track, TrajectoryEnd, new_feedback
from stepstream.topics.ids import new_event_id, now_us

if TYPE_CHECKING:
    pass
import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar, cast

from stepstream.sdk.context import Block, enter, leave, step_here, steps, trajectories
from stepstream.sdk.recorder import not_recorded, recorder

log = logging.getLogger(__name__)

Id = str | int | uuid.UUID | None
"""What identifies something: recorded as its text."""
LONGEST_HEADER = 256
"""Characters of an id that the gateway takes."""
_CHOICES = {"consent": get_args(Consent), "track": get_args(Track)}


@dataclass(frozen=True)
class About:
    """Whose trajectory it is and what it attempts."""

    agent: str = ""
    tenant: str = ""
    consent: Consent = "none"
    task_id: str = ""
    group_id: str | None = None
    environment: str = ""
    harness_version: str = ""
    split: str = "train"
    track: Track = "stable"
    user: str | None = None
    parent_trajectory_id: str | None = None
    parent_step_index: int | None = None

    @classmethod
    def of(cls, **told: Any) -> Self:
        """What is told: ids as texts, and the default for what is None.

        Raises:
            ValueError: a consent or track that there is not; the message names those that there are.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = told.get(field.name)
            if value is not None and field.name != "parent_step_index":
                value = name_of(value)
            values[field.name] = field.default if value is None else value
        for name, known in _CHOICES.items():
            if values[name] not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not '{values[name]}'")
        return cls(**values)

    def of_step(self) -> dict[str, Any]:
        """The fields as a step has them."""
        return dict(vars(self))


class Trajectory:
    """Steps, tools, rewards and sub-agents of one attempt. Made by `trajectory` and `sub_agent`; no method raises."""

    def __init__(self, recorder: Recorder | None, trajectory_id: Id, about: About) -> None:
        """Without a recorder, nothing is recorded."""
        self.id = name_of(trajectory_id)
        self.about = about
        self.recorded = recorder is not None
        """Whether anything becomes of what is said here; false where the SDK is switched off."""
        self.producer = recorder.producer if recorder is not None else ""
        self.sharing = PrefixTracker()
        self.ended = False
        self._recorder = recorder
        self._indices = itertools.count()
        self._last = -1
        self._through_gateway = False

    def step(
        self,
        messages: Any = (),
        *,
        model: str | None = "",
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        tools: Iterable[Any] = (),
    ) -> Step:
        """The next step, to be used as a context manager.

        Args:
            messages: the whole prompt, in OpenAI's shape, or one text; what earlier steps hold already is not stored
                again.
            model: that is asked.
            temperature: default 1.
            top_p: default 1.
            max_tokens: most tokens of the response.
            seed: of the sampling.
            tools: definitions of those that the model is offered, in the API's shape. Say them wherever
                `prompt_token_ids` are given too: those hold them, and what is redacted in the one takes the other.
        """
        sampling = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
        return Step(self, messages, model or "", sampling, tools)

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
        """A child trajectory, called by the step that runs now, else by the last one; the rest is inherited."""

        named = {"task_id": task_id, "environment": environment, "harness_version": harness_version}
        changes: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        return child_of(self, trajectory_id, agent=agent or self.about.agent, group_id=group_id, **changes)

    def child(self, step_index: int, **changes: Any) -> About:
        """What a sub-agent that this step calls is about."""
        whole = vars(self.about) | {"parent_trajectory_id": self.id, "parent_step_index": step_index} | changes
        return About.of(**whole)

    @quiet
    def reward(self, name: str, value: float, *, source: str = "environment", step_index: int | None = None) -> None:
        """A number (or a boolean) that the reward specification knows by `name`, about all of it or a step."""
        self.feedback(name, value, source=source, step_index=step_index)

    @quiet
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
        """What somebody says of it: a number, a word, a text, or what the agent should have answered."""
        if not self.recorded:
            return
        if not self.id:
            raise ValueError(f"feedback '{name}' needs the id of a trajectory")
        if not name or all(said is None for said in (value, category, comment, demonstration, retracts)):
            raise ValueError(f"feedback '{name}' needs a name and a value, category, comment or demonstration")
        if value is not None and not math.isfinite(value):
            raise ValueError(f"the value of feedback '{name}' is {value}: it must be a finite number")
        self._say(
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

    @quiet
    def end(self, config: TrajectoryEnd = "terminated", *, error: str | None = None) -> None:
        """Says that it is over, `terminated` by the task or `truncated` by a limit; leaving the block does too."""
        if self.ended or not self.recorded:
            return
        self.ended = True
        last = self._last if self._last >= 0 and not self._through_gateway else None
        self._say("end", category=error, source="environment", end=config, last_step_index=last)

    def headers(self) -> dict[str, str]:
        """For model calls through the gateway, which then records and counts the steps; the SDK adds tools and rewards.

        Give them to the client as default headers; for one step's calls, see `Step.headers`.
        """
        if not self.recorded:
            return {}
        self._through_gateway = True
        about = self.about
        named = {
            "trajectory": self.id,
            "agent": about.agent,
            "tenant": about.tenant,
            "consent": about.consent,
            "task": about.task_id,
            "group": about.group_id,
            "environment": about.environment,
            "harness": about.harness_version,
            "split": about.split,
            "user": about.user,
            "parent": about.parent_trajectory_id,
            "parent-step": about.parent_step_index,
        }
        told = {name: str(value) for name, value in named.items() if value not in (None, "")}
        return dict(_header(name, value) for name, value in told.items() if _fits(name, value))

    @quiet
    def tool_used(self, name: str, step_index: int | None, call_id: str, error: str | None) -> None:
        """A tool's use where the gateway records the step, or outside any: told as feedback about the call."""
        self._say(
            "tool",
            value=0.0 if error else 1.0,
            category=error,
            comment=name,
            source="environment",
            step_index=step_index,
            tool_call_id=call_id or None,
        )

    def next_index(self) -> int:
        """Takes the index of a step that begins."""
        self._last = index = next(self._indices)
        return index

    @property
    def last_index(self) -> int:
        """Index of the last step that began; -1: none has."""
        return self._last

    @property
    def inherited(self) -> bool:
        """Whether it was begun by the process that this one was forked from."""
        return self._recorder is not None and self._recorder.inherited

    def emit(self, topic: str, record: Any) -> None:
        """Sends an event of this trajectory on its way."""
        if self._recorder is not None:
            self._recorder.emit(topic, record)

    def _say(self, name: str, **fields: Any) -> None:
        if self.recorded:
            about = self.about
            self.emit(
                "feedback",
                new_feedback(
                    event_id=new_event_id(),
                    occurred_at_us=now_us(),
                    producer=self.producer,
                    tenant=about.tenant,
                    consent=about.consent,
                    user=about.user,
                    trajectory_id=self.id,
                    name=name,
                    **fields,
                ),
            )


def _fits(name: str, value: str) -> bool:
    fits = len(value) <= LONGEST_HEADER and value.isprintable()
    if not fits:
        log.error("no header for %s: the gateway takes printable text of at most %d characters", name, LONGEST_HEADER)
    return fits


def _header(name: str, value: str) -> tuple[str, str]:
    """A header that every client can send: where its value is more than ASCII, as RFC 8187 has it."""
    if value.isascii():
        return f"x-stepstream-{name}", value
    return f"x-stepstream-{name}*", "UTF-8''" + quote(value, safe="")


NOTHING = Trajectory(None, "", About())
"""Stands where nothing is recorded."""


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
