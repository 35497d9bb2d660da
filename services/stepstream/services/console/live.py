"""Report which tables changed, for the browsers' event streams: one query a second for all of them."""

import asyncio
import logging
from collections.abc import AsyncIterator

import orjson
from starlette.concurrency import run_in_threadpool

from stepstream.services.console.store import QueryFailed, Store, Unavailable

log = logging.getLogger(__name__)

# The highest block number of each table's partitions grows with every insert; merges keep it.
_BLOCKS = """
SELECT table, sum(block) AS blocks FROM
(
    SELECT table, partition_id, max(max_block_number) + 1 AS block FROM system.parts
    WHERE database = currentDatabase() AND active GROUP BY table, partition_id
)
GROUP BY table ORDER BY table
"""
_INTERVAL_S = 1.0
_SILENCE_S = 15.0


class Changes:
    """Follows the tables while a browser listens. For one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: set[asyncio.Queue[dict[str, object]]] = set()
        self._task: asyncio.Task[None] | None = None

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events: `tables` with the names of those that changed, `store` with a fault or null."""
        queue: asyncio.Queue[dict[str, object]] = asyncio.Queue(100)
        self._listeners.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._follow())
        try:
            yield b"retry: 2000\n\n"
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), _SILENCE_S)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                yield b"data: " + orjson.dumps(event) + b"\n\n"
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        known: dict[str, int] | None = None
        fault: str | None = None
        while self._listeners:
            try:
                rows = await run_in_threadpool(self._store.query, _BLOCKS, fresh_s=0.0)
            except (Unavailable, QueryFailed) as error:
                if fault != str(error):
                    fault = str(error)
                    self._tell({"store": fault})
            else:
                blocks = {row["table"]: row["blocks"] for row in rows}
                if fault is not None:
                    fault = None
                    self._tell({"store": None})
                if known is not None and (changed := [name for name in blocks if blocks[name] != known.get(name)]):
                    self._tell({"tables": changed})
                known = blocks
            await asyncio.sleep(_INTERVAL_S)
        self._task = None

    def _tell(self, event: dict[str, object]) -> None:
        for queue in self._listeners:
            if not queue.full():  # a browser that reads nothing is asleep; it reloads when it wakes
                queue.put_nowait(event)
