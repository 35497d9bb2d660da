"""`@tool` and `with tool_use(…)`: what a tool is asked and gives back, recorded on the step that runs."""

import functools
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast, overload

from stepstream.sdk.context import step_here, trajectory_here
from stepstream.sdk.recorder import quiet

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@overload
def tool(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def tool(*, name: str = "") -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def tool(function: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:
    """Records each call of a function, sync or async: arguments, result, error, duration.

    Inside a step it becomes a tool call of that step; elsewhere in a trajectory, or where the gateway records the
    step, feedback `tool` (1 or 0, the error's class) about the call; outside trajectories, nothing.

    Args:
        function: what to record.
        name: of the tool; default: the function's.
    """
    if function is None:
        return lambda found: tool_of(found, name)
    return tool_of(function, name)


def tool_of(function: Callable[P, T], name: str) -> Callable[P, T]:
    """The recorded function."""
    called = name or getattr(function, "__name__", "tool")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        log.error("%s is a generator: its calls are not recorded; say them with `tool_call` of the step", called)
        return cast(Callable[P, T], function)
    signature = signature_of(function)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def recorded(*args: P.args, **kwargs: P.kwargs) -> Any:
            if trajectory_here() is None:
                return await function(*args, **kwargs)
            begun = time.perf_counter()
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                _note(called, signature, args, kwargs, None, error, begun)
                raise
            _note(called, signature, args, kwargs, result, None, begun)
            return result

        return cast(Callable[P, T], recorded)

    @functools.wraps(function)
    def recorded_sync(*args: P.args, **kwargs: P.kwargs) -> T:
        if trajectory_here() is None:
            return function(*args, **kwargs)
        begun = time.perf_counter()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            _note(called, signature, args, kwargs, None, error, begun)
            raise
        _note(called, signature, args, kwargs, result, None, begun)
        return result

    return recorded_sync


class ToolUse:
    """A context manager, sync or async, around the use of a tool."""

    def __init__(self, name: str, arguments: Any) -> None:
        """`arguments`: JSON text, or what becomes it."""
        self.result: Any = None
        """What it gave back."""
        self._name, self._arguments = name, arguments
        self._begun = 0.0

    def __enter__(self) -> Self:
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if trajectory_here() is not None:
            _say(self._name, self._arguments, self.result, error, self._begun)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def tool_use(name: str, arguments: Any = None) -> ToolUse:
    """One use of a tool that is no function: `with tool_use("search", {"q": "x"}) as use: use.result = …`."""
    return ToolUse(name, arguments)


@quiet
def _note(
    name: str,
    signature: inspect.Signature | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: Any,
    error: BaseException | None,
    begun: float,
) -> None:
    _say(name, asked_by_name(signature, args, kwargs), result, error, begun)


@quiet
def _say(name: str, arguments: Any, result: Any, error: BaseException | None, begun: float) -> None:
    duration_ms = (time.perf_counter() - begun) * 1000
    step, trajectory = step_here(), trajectory_here()
    if step is not None:
        step.tool_call(name, arguments, result=result, error=error, duration_ms=duration_ms)
    elif trajectory is not None:
        index = trajectory.last_index
        trajectory.tool_used(name, index if index >= 0 else None, "", type(error).__name__ if error else None)


def asked_by_name(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """What a function was called with, by name, without the object that a method belongs to."""
    if signature is None:
        return {"args": list(args), **kwargs}
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:  # the call itself has failed with it
        return {"args": list(args), **kwargs}
    return {name: value for name, value in bound.items() if name not in ("self", "cls")}


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """What a function is called with; None: nobody knows."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
