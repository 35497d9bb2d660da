"""Check what wakes a worker without records: long requests to the broker, and no check that its own threads go on."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from stepstream.config import load
from stepstream.jobs.runtime.faust_app import build_app
from stepstream.jobs.runtime.transport import Transport, _ConsumerThread


async def ignore(_fetch: object) -> None:
    """Take a fetch."""


def with_thread(folder: Path, within_s: float, check: Callable[[_ConsumerThread, Transport], Awaitable[None]]) -> None:
    """Call `check` with the consumer thread of a worker, which is not started."""

    async def run() -> None:
        app = build_app(load({"STEPSTREAM_PATHS_DATA": str(folder)}), "label")
        transport = Transport(
            app.conf.broker_consumer,
            app,
            deliver=ignore,
            start_positions=lambda _: {},
            max_records=500,
            within_s=within_s,
        )
        app.transport = transport
        thread = cast(Any, app.consumer)._thread
        try:
            await check(thread, transport)
        finally:
            thread.thread_loop.close()

    asyncio.run(run())


@pytest.mark.parametrize(("within_s", "wait_ms", "size"), [(0.0, 5000, 1), (2.0, 2000, 1 << 20)])
def test_an_idle_request_waits_five_seconds_or_as_long_as_a_batch_may_fill(
    tmp_path: Path, within_s: float, wait_ms: int, size: int
) -> None:
    async def check(thread: _ConsumerThread, transport: Transport) -> None:
        consumer = thread._create_worker_consumer(transport)
        assert (consumer._fetch_max_wait_ms, consumer._fetch_min_bytes) == (wait_ms, size)
        await consumer.stop()

    with_thread(tmp_path, within_s, check)


def test_the_threads_do_not_wake_each_other_each_second(tmp_path: Path) -> None:
    async def check(thread: _ConsumerThread, _: Transport) -> None:
        await asyncio.wait_for(thread._keepalive2(), 10)  # mode's own never ends

    with_thread(tmp_path, 0.0, check)
