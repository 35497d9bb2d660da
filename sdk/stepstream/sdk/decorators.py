"""Provide `@step` and `@reward`: record the calls of functions as steps, and their return values as rewards."""

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar, cast, overload

from stepstream.sdk.messages import plain_data
from stepstream.sdk.recorder import never_raise
from stepstream.sdk.step import Step
from stepstream.sdk.tools import named_arguments, signature_or_none
from stepstream.sdk.trajectory import UNRECORDED, current_step, current_trajectory

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
    sampling: Mapping[str, Any] | None = None,
    tools: Iterable[Any] = (),
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def step(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Record each call of a function, sync or async, as a step of the current trajectory; outside any, record nothing.

    The prompt is the argument `messages`, else the first one. The response is the return value: a text, an assistant's
    message or an OpenAI client's chat completion. A function that sets it with `current_step()` may return anything.

    Args:
        function: the function, for a decorator without parentheses.
        options: arguments of `Trajectory.step`.
    """
    if function is None:
        return lambda decorated: _record_steps(decorated, options)
    return _record_steps(function, options)


def reward(
    name: str, *, source: str = "environment", level: str = "trajectory"
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Record the return value of a function, sync or async, as a reward of the current trajectory; None is no reward.

    Args:
        name: name in the reward specification.
        source: origin of the reward.
        level: `trajectory`, or `step` for the current step, else the last one.
    """

    @never_raise
    def record(value: Any) -> None:
        trajectory, step = current_trajectory() or UNRECORDED, current_step()
        index = None
        if level == "step":
            index = step.index if step is not None else trajectory.last_index
        if trajectory.is_recorded and value is not None:
            trajectory.reward(name, value, source=source, step_index=index)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def rewarded(*args: P.args, **kwargs: P.kwargs) -> Any:
                value = await function(*args, **kwargs)
                record(value)
                return value

            return cast(Callable[P, T], rewarded)

        @functools.wraps(function)
        def rewarded_sync(*args: P.args, **kwargs: P.kwargs) -> T:
            value = function(*args, **kwargs)
            record(value)
            return value

        return rewarded_sync

    return decorate


def _record_steps(function: Callable[P, T], options: Mapping[str, Any]) -> Callable[P, T]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        log.error("%s is a generator: it is not recorded; use `with t.step(…)` inside it", function.__qualname__)
        return cast(Callable[P, T], function)
    signature = signature_or_none(function)

    def begin(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Step:
        trajectory = current_trajectory() or UNRECORDED
        arguments = named_arguments(signature, args, kwargs) if trajectory.is_recorded else {}
        prompt = arguments.get("messages", next(iter(arguments.values()), ()))
        return trajectory.step(prompt, **options)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def recorded(*args: P.args, **kwargs: P.kwargs) -> Any:
            with begin(args, kwargs) as running_step:
                answer = await function(*args, **kwargs)
                _set_response(running_step, answer)
            return answer

        return cast(Callable[P, T], recorded)

    @functools.wraps(function)
    def recorded_sync(*args: P.args, **kwargs: P.kwargs) -> T:
        with begin(args, kwargs) as running_step:
            answer = function(*args, **kwargs)
            _set_response(running_step, answer)
        return answer

    return recorded_sync


@never_raise
def _set_response(step: Step, answer: Any) -> None:
    if not step.trajectory.is_recorded or answer is None or step.has_response:
        return
    answer = plain_data(answer)
    if isinstance(answer, Mapping) and "choices" in answer:
        step.completion(answer)
    else:
        step.response(answer)
