"""Following the versions of a model as they are published."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Self

from stepstream.topics.closing import Closing
from stepstream.topics.events import Checkpoint

if TYPE_CHECKING:
    from stepstream.config import Settings
    from stepstream.topics.codec import Codec
    from stepstream.topics.consumer import EventConsumer

TOPIC = "checkpoints"
_POLL_S = 0.25


class Checkpoints(Closing):
    """An iterator, sync and async, that waits for the next version. Close it, or use it as a context manager.

    Iteration ends when it is closed, from any thread.
    """

    def __init__(self, settings: Settings, model: str | None, history: bool) -> None:
        self._settings = settings
        self._model = model
        self._history = history
        self._found: deque[Checkpoint] = deque()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._consumer: EventConsumer | None = None
        self._codec: Codec | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Checkpoint:
        while not self._found:
            if self._closed.is_set():
                raise StopIteration
            self._look()
        return self._found.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Checkpoint:
        while not self._found:  # what a cancelled wait has found stays for the next one
            if self._closed.is_set():
                raise StopAsyncIteration
            import asyncio  # which a program that only imports the SDK can do without

            await asyncio.to_thread(self._look)
        return self._found.popleft()

    def close(self) -> None:
        """Ends the iteration and frees the connections."""
        self._closed.set()
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
            if self._codec is not None:
                self._codec.close()
                self._codec = None

    def _look(self) -> None:
        """Looks once; blocks for a quarter of a second at most, longer while Kafka or the registry is away."""
        with self._lock:
            if self._closed.is_set():
                return
            if self._consumer is None:
                self._found += self._begin()
                return
            self._found += self._poll(self._consumer)

    def _begin(self) -> list[Checkpoint]:
        from stepstream.topics.client import wait_for_kafka
        from stepstream.topics.codec import Codec
        from stepstream.topics.consumer import EventConsumer

        wait_for_kafka(self._settings.kafka, self._closed.is_set)
        if self._closed.is_set():
            return []
        self._codec = Codec(self._settings.schema_registry)
        self._consumer = consumer = EventConsumer(self._settings.kafka, self._codec)
        consumer.follow([TOPIC])
        before: list[Checkpoint] = []
        while not consumer.caught_up() and not self._closed.is_set():
            before += self._poll(consumer)
        if self._history:
            return before
        newest = {checkpoint["model"]: checkpoint for checkpoint in before}
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
    """The newest version of a model, then each one that is published: for `for` and `async for`.

    Args:
        model: default: all models.
        history: begins with all versions there are instead of the newest.
        settings: where the log is; default: as `stepstream config` shows them.

    Raises:
        KafkaUnavailable: while iterating, where no broker answers within `kafka.deadline_s`.
    """
    from stepstream.config import load

    return Checkpoints(settings or load(), model, history)
