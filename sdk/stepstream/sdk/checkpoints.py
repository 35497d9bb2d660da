"""Iterate over records as they are published: a subscription to topics, and one to the versions of a model."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from stepstream.topics.catalogue import CHECKPOINTS
from stepstream.topics.events import Checkpoint

if TYPE_CHECKING:
    from stepstream.config import Settings
    from stepstream.topics.codec import Codec
    from stepstream.topics.consumer import Event, EventConsumer

_POLL_S = 0.25
T = TypeVar("T")


class Subscription(AbstractContextManager["Subscription[T]"], Generic[T]):
    """A blocking iterator, sync and async, over records of topics: the state of now, then what follows.

    Closing it, from any thread, ends the iteration.
    """

    topics: tuple[str, ...]

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._unread: deque[T] = deque()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._consumer: EventConsumer | None = None
        self._codec: Codec | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._unread:
            if self._closed.is_set():
                raise StopIteration
            self._read()
        return self._unread.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._unread:  # a cancelled call leaves its events to the next one
            if self._closed.is_set():
                raise StopAsyncIteration
            import asyncio  # here: importing the SDK must stay fast

            await asyncio.to_thread(self._read)
        return self._unread.popleft()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration and close the connections."""
        self._closed.set()
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
            if self._codec is not None:
                self._codec.close()
                self._codec = None

    def state(self) -> list[T]:
        """Return the state of now. Call it once, instead of iterating, or before."""
        with self._lock:
            if self._consumer is None and not self._closed.is_set():
                self._unread += self._connect()
        found = list(self._unread)
        self._unread.clear()
        return found

    @abstractmethod
    def _at_start(self, events: list[Event]) -> Iterable[T]:
        """Return the state of now from the records that are present."""

    @abstractmethod
    def _later(self, events: list[Event]) -> Iterable[T]:
        """Return what later records say."""

    def _read(self) -> None:
        """Poll once. Blocks for at most 0.25 s, longer while Kafka or the registry is unavailable."""
        with self._lock:
            if self._closed.is_set():
                return
            if self._consumer is None:
                self._unread += self._connect()
                return
            self._unread += self._later(self._consumer.poll(100, _POLL_S))

    def _connect(self) -> Iterable[T]:
        from stepstream.topics.client import wait_for_kafka
        from stepstream.topics.codec import Codec
        from stepstream.topics.consumer import EventConsumer

        wait_for_kafka(self._settings.kafka, self._closed.is_set)
        if self._closed.is_set():
            return []
        self._codec = Codec(self._settings)
        self._consumer = consumer = EventConsumer(self._settings.kafka, self._codec)
        consumer.follow(self.topics)
        events: list[Event] = []
        while not consumer.is_caught_up() and not self._closed.is_set():
            events += consumer.poll(100, _POLL_S)
        return self._at_start(events)


class Checkpoints(Subscription[Checkpoint]):
    """A blocking iterator, sync and async, of checkpoint events. Close it, or use it as a context manager.

    Closing it, from any thread, ends the iteration.
    """

    topics = (CHECKPOINTS,)

    def __init__(self, settings: Settings, model: str | None, history: bool) -> None:
        super().__init__(settings)
        self._model = model
        self._with_history = history
        self._delivered: dict[str, str] = {}

    def _at_start(self, events: list[Event]) -> Iterable[Checkpoint]:
        newest = {event.key: event for event in events}  # a version that was removed is no longer published
        published = self._later(list(newest.values()))
        if self._with_history:
            return published
        return {checkpoint["model"]: checkpoint for checkpoint in published}.values()

    def _later(self, events: list[Event]) -> list[Checkpoint]:
        return [
            event.record
            for event in events
            if event.record is not None
            and event.record["removed_at_us"] is None
            and (self._model is None or event.record["model"] == self._model)
            and self._is_new(event.key, event.record["event_id"])
        ]

    def _is_new(self, key: str, event_id: str) -> bool:
        """Return True if a version is published now; False if only its training state was removed."""
        is_new = self._delivered.get(key) != event_id
        self._delivered[key] = event_id
        return is_new


def subscribe_checkpoints(
    model: str | None = None, *, history: bool = False, settings: Settings | None = None
) -> Checkpoints:
    """Iterate over the newest version of a model, then each new one, with `for` or `async for`.

    Args:
        model: default: all models.
        history: start with all published versions instead of the newest.
        settings: default: those that `stepstream config` shows.

    Raises:
        KafkaUnavailable: while iterating, if no broker answers within `kafka.deadline_s`.
    """
    from stepstream.config import load

    return Checkpoints(settings or load(), model, history)
