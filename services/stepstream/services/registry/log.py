"""Offer the schemas topic to the HTTP service: a view to read, and one write at a time."""

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
    """A log of schemas, as the HTTP service uses it."""

    @property
    def view(self) -> View:
        """The newest view."""

    async def refresh(self) -> None:
        """Read to the log's end if possible within a short time."""

    async def write(self, decide: Callable[[View], Write]) -> Any:
        """Decide, append the records, and return the answer once the view contains them."""


class KafkaLog:
    """The log on Kafka."""

    def __init__(self, kafka: KafkaSettings, write_timeout_s: float) -> None:
        self._reader = Reader(kafka)
        self._writer = Writer(kafka, self._reader)
        self._timeout = write_timeout_s
        self._write_lock = asyncio.Lock()

    @property
    def view(self) -> View:
        """The newest view."""
        return self._reader.view

    def replay(self, timeout: float) -> bool:
        """Block until the topic is read to its end; return False after `timeout` seconds."""
        return self._reader.catch_up(timeout)

    async def refresh(self) -> None:
        """Read to the log's end, for at most `REFRESH_S` seconds, so that reads work without a broker."""
        await asyncio.to_thread(self._reader.catch_up, REFRESH_S)

    async def write(self, decide: Callable[[View], Write]) -> Any:
        """Decide, append the records, and return the answer once the view contains them.

        Raises:
            RegistryError: as `decide` raises; 50002 or 50003 if Kafka does not commit in time.
        """
        arrived = time.monotonic()
        async with self._write_lock:
            left = self._timeout - (time.monotonic() - arrived)
            if left <= 0:
                raise errors.log_unreachable("earlier writes are still waiting")
            return await asyncio.to_thread(self._writer.write, decide, left)

    def close(self) -> None:
        """Stop following the log."""
        self._reader.close()
