"""Provide `@tool` and `with tool_use(…)`: record the arguments, results and errors of tools."""

import functools
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast, overload

from stepstream.sdk.recorder import never_raise
from stepstream.sdk.trajectory import current_step, current_trajectory

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@overload
def tool(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def tool(*, name: str = "") -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def tool(function: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:
    """Record each call of a function, sync or async: arguments, result, error, duration.

    Inside a step the call becomes a tool call of the step. Elsewhere in a trajectory, or where the gateway records the
    step, it becomes feedback `tool` (1 or 0, the error's class). Outside trajectories nothing is recorded.

    Args:
        function: the function, for a decorator without parentheses.
        name: name of the tool; default: the function's.
    """
    if function is None:
        return lambda decorated: record_calls(decorated, name)
    return record_calls(function, name)


def record_calls(function: Callable[P, T], name: str) -> Callable[P, T]:
    """Return the function, with its calls recorded under the tool's `name`."""
    tool_name = name or getattr(function, "__name__", "tool")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        log.error("%s is a generator: its calls are not recorded; record them with `tool_call` of the step", tool_name)
        return cast(Callable[P, T], function)
    signature = signature_or_none(function)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def recorded(*args: P.args, **kwargs: P.kwargs) -> Any:
            if current_trajectory() is None:
                return await function(*args, **kwargs)
            started = time.perf_counter()
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                _record_call(tool_name, signature, args, kwargs, None, error, started)
                raise
            _record_call(tool_name, signature, args, kwargs, result, None, started)
            return result

        return cast(Callable[P, T], recorded)

    @functools.wraps(function)
    def recorded_sync(*args: P.args, **kwargs: P.kwargs) -> T:
        if current_trajectory() is None:
            return function(*args, **kwargs)
        started = time.perf_counter()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            _record_call(tool_name, signature, args, kwargs, None, error, started)
            raise
        _record_call(tool_name, signature, args, kwargs, result, None, started)
        return result

    return recorded_sync


class ToolUse:
    """A context manager, sync or async, that records one use of a tool."""

    def __init__(self, name: str, arguments: Any) -> None:
        """`arguments`: JSON text, or a value to convert to JSON."""
        self.result: Any = None
        """Result of the tool; set it inside the block."""
        self._name, self._arguments = name, arguments
        self._started = 0.0

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if current_trajectory() is not None:
            _record_use(self._name, self._arguments, self.result, error, self._started)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def tool_use(name: str, arguments: Any = None) -> ToolUse:
    """Record one use of a tool that is no function: `with tool_use("search", {"q": "x"}) as use: use.result = …`."""
    return ToolUse(name, arguments)


@never_raise
def _record_call(
    name: str,
    signature: inspect.Signature | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: Any,
    error: BaseException | None,
    started: float,
) -> None:
    _record_use(name, named_arguments(signature, args, kwargs), result, error, started)


@never_raise
def _record_use(name: str, arguments: Any, result: Any, error: BaseException | None, started: float) -> None:
    duration_ms = (time.perf_counter() - started) * 1000
    step, trajectory = current_step(), current_trajectory()
    if step is not None:
        step.tool_call(name, arguments, result=result, error=error, duration_ms=duration_ms)
    elif trajectory is not None:
        index = trajectory.last_index
        trajectory.record_tool_use(name, index if index >= 0 else None, "", type(error).__name__ if error else None)


def named_arguments(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name, without `self` and `cls`."""
    if signature is None:
        return {"args": list(args), **kwargs}
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:  # the call itself raised it
        return {"args": list(args), **kwargs}
    return {name: value for name, value in bound.items() if name not in ("self", "cls")}


def signature_or_none(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function; None: Python does not know it."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
