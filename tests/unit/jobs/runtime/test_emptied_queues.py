"""Empty Faust's queue in a rebalance while a fetch waits for it: the worker goes on."""

import asyncio
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from mode import Service

from stepstream.jobs.runtime.runner import _fetcher_ended
from stepstream.jobs.runtime.transport import _Consumer


class FakeConsumer(Service):
    """The parts of a consumer that `_drain_messages` uses; its next fetch is the number of earlier ones."""

    _drain_messages: Any = _Consumer._drain_messages
    _deliver: Any = _Consumer._deliver

    def __init__(self, app: faust.App) -> None:
        super().__init__()
        self.app, self.fetches = app, app.channel(maxsize=1)
        self.transport = SimpleNamespace(deliver=self.fetches.put)
        self.suspend_flow, self.flow_active, self.fetched = asyncio.Event(), True, 0

    async def _wait_next_records(self, _timeout: float) -> tuple[int | None, None]:
        await asyncio.sleep(0)
        self.fetched += self.flow_active
        return self.fetched if self.flow_active else None, None

    def rebalance(self) -> None:
        """Revoke the partitions as Faust does."""
        self.app.rebalancing = True
        self.flow_active = False
        self.suspend_flow.set()
        self.app.flow_control.suspend()
        self.app.flow_control.clear()

    def resume(self) -> None:
        self.app.flow_control.resume()
        self.flow_active = True
        self.suspend_flow.clear()
        self.app.rebalancing = False


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_fetch_that_waits_for_a_full_queue_is_dropped_in_a_rebalance() -> None:
    async def run() -> None:
        app = faust.App("test", broker="aiokafka://127.0.0.1:9")
        consumer = FakeConsumer(app)
        fetches: Any = consumer.fetches
        queue = fetches.clone(is_iterator=True)
        fetches._subscribers.add(queue)
        app.flow_control.resume()
        fetcher: Any = SimpleNamespace(_stopped=asyncio.Event())
        drain = asyncio.ensure_future(consumer._drain_messages(fetcher))
        await turns()
        assert consumer.fetched == 2  # one is in the queue, one waits for a place
        consumer.rebalance()
        await turns()
        assert not drain.done()
        consumer.resume()
        assert await queue.queue.get() == 3  # the earlier fetches are read again
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
