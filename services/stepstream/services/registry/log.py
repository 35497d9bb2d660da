"""The schemas topic as the HTTP service uses it: a view to read, and writes that wait for their turn."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from stepstream.config import KafkaSettings
from stepstream.services.registry import errors
from stepstream.services.registry.reader import Reader
from stepstream.services.registry.view import View
from stepstream.services.registry.writer import REFRESH_S, Writer
from stepstream.services.registry.writes import Write


class SchemaLog(Protocol):
    """What the HTTP service needs of a log."""

    @property
    def view(self) -> View:
        """The newest view."""

    async def refresh(self) -> None:
        """Reads to the log's end, where that is possible soon."""

    async def write(self, decide: Callable[[View], Write]) -> Any:
        """Decides, appends, and answers once the records are in the view."""


class KafkaLog:
    """The log on Kafka."""

    def __init__(self, kafka: KafkaSettings, write_timeout_s: float) -> None:
        self._reader = Reader(kafka)
        self._writer = Writer(kafka, self._reader)
        self._timeout = write_timeout_s
        self._turn = asyncio.Lock()

    @property
    def view(self) -> View:
        """The newest view."""
        return self._reader.view

    def replay(self, timeout: float) -> bool:
        """Blocks until the topic has been read to its end; False: not within `timeout` seconds."""
        return self._reader.catch_up(timeout)

    async def refresh(self) -> None:
        """Reads to the log's end, or gives up after `REFRESH_S` seconds: reads go on without a broker."""
        await asyncio.to_thread(self._reader.catch_up, REFRESH_S)

    async def write(self, decide: Callable[[View], Write]) -> Any:
        """Decides, appends, and answers once the records are in the view.

        Raises:
            RegistryError: what `decide` raises; 50002 or 50003 when the log does not take it in time.
        """
        arrived = time.monotonic()
        async with self._turn:
            left = self._timeout - (time.monotonic() - arrived)
            if left <= 0:
                raise errors.log_unreachable("earlier writes are still waiting")
            return await asyncio.to_thread(self._writer.write, decide, left)

    def close(self) -> None:
        """Stops following the log."""
        self._reader.close()
