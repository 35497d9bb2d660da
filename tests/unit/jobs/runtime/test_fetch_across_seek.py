"""Let a fetch outlast a rebalance: its records are read again."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from prometheus_client import REGISTRY

from stepstream.jobs.runtime.fetch import GroupMember
from stepstream.jobs.runtime.transport import _ConsumerThread

TP = TopicPartition("steps", 6)
START = 7


class FakeClient:
    """The parts of aiokafka's consumer that a fetch uses; its one partition has a record at each offset."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(position=START, has_valid_position=True, highwater=None)
        assignment = SimpleNamespace(tps={TP}, state_value=lambda _: self.state)
        self._subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))

    def assignment(self) -> set[TopicPartition]:
        return {TP}

    def seek(self, _partition: TopicPartition, offset: int) -> None:
        self.state.position = offset

    def pop(self) -> dict[TopicPartition, list[Any]]:
        offset, self.state.position = self.state.position, self.state.position + 1
        return {TP: [SimpleNamespace(partition=6, offset=offset, timestamp=0, key=b"", value=b"", headers=())]}


class FakeThread:
    """A consumer thread whose fetches wait for `arrived`."""

    fetch_once: Any = _ConsumerThread._fetch
    rebalance: Any = _ConsumerThread._seek_to_start
    _moved_positions: Any = _ConsumerThread._moved_positions
    _states: Any = _ConsumerThread._states
    _lag: Any = _ConsumerThread._lag
    _short: Any = _ConsumerThread._short

    def __init__(self) -> None:
        self.client, self.arrived = FakeClient(), asyncio.Event()
        self.requests: list[str] = []
        self.generation, self._reported, self._seeks = 1, {TP: START}, 0
        self.consumer = SimpleNamespace(flow_active=True)
        self.transport = SimpleNamespace(
            prefix="", max_records=10, within_s=0.0, start_positions=lambda _: {("steps", 6): START}
        )
        self._requests = SimpleNamespace(hold=self.calls("hold"), release=self.calls("release"))

    def calls(self, name: str) -> Callable[[], None]:
        """Return a function that notes its call under a name."""
        return lambda: self.requests.append(name)

    def _ensure_consumer(self) -> FakeClient:
        return self.client

    def member(self) -> GroupMember:
        return GroupMember("govern", self.generation, "me", None)

    async def _fetch_records(self, client: FakeClient, _active: Any, **_limits: Any) -> dict[TopicPartition, list[Any]]:
        await self.arrived.wait()
        return client.pop()


async def offsets_of(thread: FakeThread) -> tuple[list[int], dict[Any, Any]]:
    fetch = await thread.fetch_once(None, 0.25)
    return [record.offset for record in fetch.records], fetch.positions


def test_records_that_arrive_after_a_rebalance_in_a_fetch_from_before_it_are_read_again() -> None:
    async def run() -> None:
        thread = FakeThread()
        early = asyncio.ensure_future(thread.fetch_once(None, 0.25))
        await asyncio.sleep(0)
        thread.generation += 1
        await thread.rebalance()
        thread.arrived.set()
        assert await early is None
        assert await offsets_of(thread) == ([START], {("steps", 6): (START, START + 1)})

    asyncio.run(run())


def test_records_of_a_fetch_during_a_rebalance_are_read_again() -> None:
    async def run() -> None:
        thread = FakeThread()
        thread.arrived.set()
        thread.consumer.flow_active = False
        assert await thread.fetch_once(None, 0.25) is None
        thread.consumer.flow_active = True
        assert await offsets_of(thread) == ([START], {("steps", 6): (START, START + 1)})

    asyncio.run(run())


def test_the_lag_counts_offsets_up_to_the_end_of_the_log_that_were_not_fetched_before() -> None:
    async def run() -> None:
        thread = FakeThread()
        thread.arrived.set()
        thread.client.state.highwater = START + 3
        for lag in (3, 2, 1):
            await thread.fetch_once(None, 0.25)
            assert REGISTRY.get_sample_value("stepstream_job_lag_offsets") == lag

    asyncio.run(run())


@pytest.mark.parametrize(
    ("max_records", "within_s", "requests"),
    [(10, 0.0, ["release", "hold"]), (1, 0.0, ["release"]), (10, 5.0, ["release"])],
    ids=["no backlog", "a full fetch: more wait", "the broker collects"],
)
def test_requests_are_held_while_a_fetch_without_a_backlog_is_processed(
    max_records: int, within_s: float, requests: list[str]
) -> None:
    async def run() -> None:
        thread = FakeThread()
        thread.transport.max_records, thread.transport.within_s = max_records, within_s
        thread.arrived.set()
        assert await offsets_of(thread) == ([START], {("steps", 6): (START, START + 1)})
        assert thread.requests == requests

    asyncio.run(run())
