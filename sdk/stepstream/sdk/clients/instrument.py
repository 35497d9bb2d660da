"""Make the stock `openai` and `anthropic` clients of this process record their calls, sync and async."""

import importlib
import importlib.util
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Any

from stepstream.sdk.clients.recording import RecordedCall, begin_call

_CLASSES = {"openai": ("OpenAI", "AsyncOpenAI"), "anthropic": ("Anthropic", "AsyncAnthropic")}
_originals: dict[type, Any] = {}
_lock = threading.Lock()


def instrument() -> None:
    """Record each model call of the installed `openai` and `anthropic` clients as a step of the current trajectory.

    This holds for all clients of the process, also for those that exist already. The call itself is unchanged: it
    returns and raises what it would without recording. Calling this again changes nothing.
    """
    with _lock:
        for package, names in _CLASSES.items():
            if importlib.util.find_spec(package) is None:
                continue
            module = importlib.import_module(package)
            for name in names:
                client = getattr(module, name)
                if client not in _originals:
                    _originals[client] = client.__dict__.get("request")
                    wrap = _record_async if name.startswith("Async") else _record
                    client.request = wrap(client.request)


def uninstrument() -> None:
    """Undo `instrument`."""
    with _lock:
        for client, original in _originals.items():
            if original is None:
                del client.request  # type: ignore[attr-defined]
            else:
                client.request = original  # type: ignore[attr-defined]
        _originals.clear()


def _record(request: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(request)
    def recorded(client: Any, cast_to: Any, options: Any, **kwargs: Any) -> Any:
        call = begin_call(client, options)
        if call is None:
            return request(client, cast_to, options, **kwargs)
        try:
            reply = request(client, cast_to, options, **_with_stream(kwargs, call, _recorded_stream))
        except BaseException as error:
            call.fail(type(error))
            raise
        if not kwargs.get("stream"):
            call.finish(reply)
        return reply

    return recorded


def _record_async(request: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(request)
    async def recorded(client: Any, cast_to: Any, options: Any, **kwargs: Any) -> Any:
        call = begin_call(client, options)
        if call is None:
            return await request(client, cast_to, options, **kwargs)
        try:
            reply = await request(client, cast_to, options, **_with_stream(kwargs, call, _recorded_async_stream))
        except BaseException as error:
            call.fail(type(error))
            raise
        if not kwargs.get("stream"):
            call.finish(reply)
        return reply

    return recorded


def _with_stream(
    kwargs: dict[str, Any], call: RecordedCall, make: Callable[[Any, RecordedCall], Any]
) -> dict[str, Any]:
    """Return the request's arguments with a class of stream that records its events."""
    stream_class = kwargs.get("stream_cls")
    return {**kwargs, "stream_cls": make(stream_class, call)} if kwargs.get("stream") and stream_class else kwargs


def _recorded_stream(stream_class: Any, call: RecordedCall) -> Any:
    class RecordedStream(stream_class):  # type: ignore[misc]
        def __stream__(self) -> Iterator[Any]:
            try:
                for event in super().__stream__():
                    call.add(event)
                    yield event
            except BaseException as error:
                call.finish_stream(type(error))
                raise
            call.finish_stream(None)

        def close(self) -> None:
            call.finish_stream(None)
            super().close()

    return RecordedStream


def _recorded_async_stream(stream_class: Any, call: RecordedCall) -> Any:
    class RecordedAsyncStream(stream_class):  # type: ignore[misc]
        async def __stream__(self) -> AsyncIterator[Any]:
            try:
                async for event in super().__stream__():
                    call.add(event)
                    yield event
            except BaseException as error:
                call.finish_stream(type(error))
                raise
            call.finish_stream(None)

        async def close(self) -> None:
            call.finish_stream(None)
            await super().close()

    return RecordedAsyncStream
