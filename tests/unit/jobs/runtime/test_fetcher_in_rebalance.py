"""A rebalance ends the wait for a fetch that is being processed, and neither the processing nor the fetcher."""

import asyncio
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from mode import Service

from stepstream.jobs.runtime.runner import JobWorker, _fetcher_ended
from stepstream.jobs.runtime.transport import _Consumer


class FakeConsumer(Service):
    """The parts of a consumer that `_drain_messages` uses; its next fetch is the number of earlier ones."""

    _drain_messages: Any = _Consumer._drain_messages

    def __init__(self, app: faust.App, deliver: Any) -> None:
        super().__init__()
        self.app, self.transport = app, SimpleNamespace(deliver=deliver)
        self.suspend_flow, self.flow_active, self.fetched = asyncio.Event(), True, 0

    async def _wait_next_records(self, _timeout: float) -> tuple[int | None, None]:
        await asyncio.sleep(0)
        self.fetched += self.flow_active
        return self.fetched if self.flow_active else None, None


class FakeWorker:
    """A worker that processes a fetch until `free` is set."""

    deliver: Any = JobWorker._process
    _process_one: Any = JobWorker._process_one

    def __init__(self) -> None:
        self._fault, self._stop, self._revoking = None, False, False
        self.free = asyncio.Event()
        self.begun: list[int] = []
        self.processed: list[int] = []
        self._processor = SimpleNamespace(process=None)

    async def _guarded(self, _process: Any, fetch: int) -> bool:
        self.begun.append(fetch)
        await self.free.wait()
        self.processed.append(fetch)
        return True

    def _observe(self, *_: Any) -> None:
        pass


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_rebalance_ends_the_wait_for_a_fetch_and_not_its_processing() -> None:
    async def run() -> None:
        worker = FakeWorker()
        consumer = FakeConsumer(faust.App("test", broker="aiokafka://127.0.0.1:9"), worker.deliver)
        fetcher: Any = SimpleNamespace(_stopped=asyncio.Event())
        drain = asyncio.ensure_future(consumer._drain_messages(fetcher))
        await turns()
        assert (consumer.fetched, worker.begun) == (1, [1])  # no fetch waits behind the one in progress
        consumer.flow_active = False
        consumer.suspend_flow.set()
        await turns()
        assert not drain.done()
        consumer.flow_active = True
        consumer.suspend_flow.clear()
        await turns()
        assert worker.begun == [1, 2]
        worker.free.set()
        await turns()
        assert worker.processed[:2] == [1, 2]
        drain.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drain

    asyncio.run(run())


def test_a_fetcher_that_has_ended_without_a_crash_is_noticed() -> None:
    async def run() -> None:
        app = faust.App("test", broker="aiokafka://127.0.0.1:9")

        async def cancelled(_fetcher: Any) -> None:
            raise asyncio.CancelledError

        app.consumer = SimpleNamespace(_drain_messages=cancelled, beacon=app.beacon)  # type: ignore[assignment]
        assert not _fetcher_ended(app)
        await app._fetcher.start()
        await turns()
        assert _fetcher_ended(app)
        assert not app.crashed

    asyncio.run(run())
