"""Drain fetches through Faust's fetcher: a cancelled call of the client does not end the worker."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from stepstream.jobs.runtime import transport
from stepstream.jobs.runtime.transport import _Consumer


class FakeConsumer:
    """The parts of the consumer that `_drain_messages` uses; each entry of `answers` is one wait for records."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.delivered = answers, []  # type: list[Any], list[Any]
        self._stopped, self.suspend_flow = asyncio.Event(), asyncio.Event()
        self.flow_active = True
        self.app = SimpleNamespace(should_stop=False)
        self.transport = SimpleNamespace(deliver=self.deliver)

    async def deliver(self, fetch: Any) -> None:
        self.delivered.append(fetch)
        self._stopped.set()

    async def wait_first(self, first: Coroutine[Any, Any, None], other: Coroutine[Any, Any, bool]) -> None:
        other.close()
        await first

    async def _wait_next_records(self, _timeout: float) -> tuple[Any, None]:
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, BaseException):
            raise answer
        return answer, None


async def drain(consumer: FakeConsumer, fetcher: Any) -> None:
    await _Consumer._drain_messages(consumer, fetcher)  # type: ignore[arg-type]


def test_a_call_that_the_client_cancels_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_WAIT_S", 0.0)

    async def run() -> None:
        consumer = FakeConsumer([asyncio.CancelledError(), "fetch"])
        await drain(consumer, SimpleNamespace(_stopped=asyncio.Event()))
        assert consumer.delivered == ["fetch"]

    asyncio.run(run())


@pytest.mark.parametrize("stops", [True, False])
def test_a_cancelled_fetcher_ends_without_an_error_only_if_it_stops(stops: bool) -> None:
    async def run() -> None:
        fetcher = SimpleNamespace(_stopped=asyncio.Event())
        task = asyncio.ensure_future(drain(FakeConsumer([None]), fetcher))
        await asyncio.sleep(0)
        if stops:
            fetcher._stopped.set()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() is not stops

    asyncio.run(run())
