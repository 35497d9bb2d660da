"""`@step` and `@reward`: what functions of an agent's program ask a model, and how they judge it."""

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar, cast, overload

from stepstream.sdk.context import step_here, trajectory_here
from stepstream.sdk.messages import plain
from stepstream.sdk.recorder import quiet
from stepstream.sdk.step import Step
from stepstream.sdk.tools import asked_by_name, signature_of
from stepstream.sdk.trajectory import NOTHING

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@overload
def step(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def step(
    *,
    model: str = "",
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    tools: Iterable[Any] = (),
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def step(function: Callable[..., Any] | None = None, /, **about: Any) -> Any:
    """Makes each call of a function, sync or async, a step of the trajectory that runs; outside any it records nothing.

    The prompt is the argument `messages`, else the first one. The response is what the function gives back: a text, an
    assistant's message or an OpenAI client's chat completion; nothing, where it says it itself (`current_step()`).

    Args:
        function: what to record.
        about: as `Trajectory.step` takes it.
    """
    if function is None:
        return lambda found: _step_of(found, about)
    return _step_of(function, about)


def reward(
    name: str, *, source: str = "environment", level: str = "trajectory"
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes what a function, sync or async, gives back a reward of the trajectory that runs; None is none.

    Args:
        name: by which the reward specification knows it.
        source: who says so.
        level: `trajectory`, or `step`: of the step that runs, else of the last one.
    """

    @quiet
    def say(value: Any) -> None:
        trajectory, running = trajectory_here() or NOTHING, step_here()
        index = None
        if level == "step":
            index = running.index if running is not None else trajectory.last_index
        if trajectory.recorded and value is not None:
            trajectory.reward(name, value, source=source, step_index=index)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def judged(*args: P.args, **kwargs: P.kwargs) -> Any:
                value = await function(*args, **kwargs)
                say(value)
                return value

            return cast(Callable[P, T], judged)

        @functools.wraps(function)
        def judged_sync(*args: P.args, **kwargs: P.kwargs) -> T:
            value = function(*args, **kwargs)
            say(value)
            return value

        return judged_sync

    return decorate


def _step_of(function: Callable[P, T], about: Mapping[str, Any]) -> Callable[P, T]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        log.error("%s is a generator: it is not recorded; use `with t.step(…)` inside it", function.__qualname__)
        return cast(Callable[P, T], function)
    signature = signature_of(function)

    def begun(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Step:
        trajectory = trajectory_here() or NOTHING
        given = asked_by_name(signature, args, kwargs) if trajectory.recorded else {}
        prompt = given.get("messages", next(iter(given.values()), ()))
        return trajectory.step(prompt, **about)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def recorded(*args: P.args, **kwargs: P.kwargs) -> Any:
            with begun(args, kwargs) as running:
                answer = await function(*args, **kwargs)
                _answered(running, answer)
            return answer

        return cast(Callable[P, T], recorded)

    @functools.wraps(function)
    def recorded_sync(*args: P.args, **kwargs: P.kwargs) -> T:
        with begun(args, kwargs) as running:
            answer = function(*args, **kwargs)
            _answered(running, answer)
        return answer

    return recorded_sync


@quiet
def _answered(running: Step, answer: Any) -> None:
    if not running.trajectory.recorded or answer is None or running.answered:
        return
    answer = plain(answer)
    if isinstance(answer, Mapping) and "choices" in answer:
        running.completion(answer)
    else:
        running.response(answer)
