"""Iterate over the versions of a model as the learner publishes them."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from stepstream.topics.catalogue import CHECKPOINTS
from stepstream.topics.events import Checkpoint

if TYPE_CHECKING:
    from stepstream.config import Settings
    from stepstream.topics.codec import Codec
    from stepstream.topics.consumer import EventConsumer

_POLL_S = 0.25


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """A blocking iterator, sync and async, of checkpoint events. Close it, or use it as a context manager.

    Closing it, from any thread, ends the iteration.
    """

    def __init__(self, settings: Settings, model: str | None, history: bool) -> None:
        self._settings = settings
        self._model = model
        self._with_history = history
        self._unread: deque[Checkpoint] = deque()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._consumer: EventConsumer | None = None
        self._codec: Codec | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Checkpoint:
        while not self._unread:
            if self._closed.is_set():
                raise StopIteration
            self._read()
        return self._unread.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Checkpoint:
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

    def _read(self) -> None:
        """Poll once. Blocks for at most 0.25 s, longer while Kafka or the registry is unavailable."""
        with self._lock:
            if self._closed.is_set():
                return
            if self._consumer is None:
                self._unread += self._connect()
                return
            self._unread += self._poll(self._consumer)

    def _connect(self) -> list[Checkpoint]:
        from stepstream.topics.client import wait_for_kafka
        from stepstream.topics.codec import Codec
        from stepstream.topics.consumer import EventConsumer

        wait_for_kafka(self._settings.kafka, self._closed.is_set)
        if self._closed.is_set():
            return []
        self._codec = Codec(self._settings.schema_registry)
        self._consumer = consumer = EventConsumer(self._settings.kafka, self._codec)
        consumer.follow([CHECKPOINTS])
        published: list[Checkpoint] = []
        while not consumer.is_caught_up() and not self._closed.is_set():
            published += self._poll(consumer)
        if self._with_history:
            return published
        newest = {checkpoint["model"]: checkpoint for checkpoint in published}
        return list(newest.values())

    def _poll(self, consumer: EventConsumer) -> list[Checkpoint]:
        return [
            event.record
            for event in consumer.poll(100, _POLL_S)
            if event.record is not None and (self._model is None or event.record["model"] == self._model)
        ]


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
