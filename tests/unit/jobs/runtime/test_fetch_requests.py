"""Requests to the broker: their longest wait, and none while a small batch is processed."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher

from stepstream.jobs.runtime.fetch_requests import PARTIAL_WAIT_MS, FetchRequests

BUSY, IDLE = TopicPartition("steps", 0), TopicPartition("feedback", 0)


def run_with_fetcher(check: Callable[[Fetcher, Any], Awaitable[None]]) -> None:
    """Call `check` with a fetcher of aiokafka and its assignment of two partitions of one broker."""

    async def run() -> None:
        cluster = SimpleNamespace(leader_for_partition=lambda _: 1)
        client = SimpleNamespace(_loop=asyncio.get_running_loop(), _metadata_max_age_ms=1000, cluster=cluster)
        nothing = SimpleNamespace(register_fetch_waiters=lambda _: None, subscription=None)
        nothing.wait_for_assignment = asyncio.Event().wait
        fetcher = Fetcher(client, nothing, fetch_max_wait_ms=1500)
        states = {
            tp: SimpleNamespace(has_valid_position=True, paused=False, position=0, resume_fut=None)
            for tp in (BUSY, IDLE)
        }
        assignment = SimpleNamespace(tps=list(states), state_value=states.__getitem__)
        try:
            await check(fetcher, assignment)
        finally:
            await fetcher.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("waiting_here", "paused", "requested", "wait_ms"),
    [
        ((), False, {"steps", "feedback"}, 1500),
        ((BUSY,), False, {"feedback"}, PARTIAL_WAIT_MS),
        ((), True, {"feedback"}, PARTIAL_WAIT_MS),
    ],
)
def test_only_a_request_for_all_partitions_waits_long(
    waiting_here: tuple[TopicPartition, ...], paused: bool, requested: set[str], wait_ms: int
) -> None:
    async def check(fetcher: Fetcher, assignment: Any) -> None:
        FetchRequests(fetcher)
        assignment.state_value(BUSY).paused = paused
        fetcher._records |= {tp: SimpleNamespace(calculate_backoff=lambda: 0) for tp in waiting_here}
        [(_, request)] = fetcher._get_actions_per_node(assignment)[0]
        assert {topic for topic, _ in request.topics} == requested
        assert request._max_wait_ms == wait_ms

    run_with_fetcher(check)


def test_held_requests_are_sent_at_once_after_the_release() -> None:
    async def check(fetcher: Fetcher, assignment: Any) -> None:
        requests = FetchRequests(fetcher)
        fetcher._wait_consume_future = woken = asyncio.get_running_loop().create_future()
        requests.hold()
        assert fetcher._get_actions_per_node(assignment)[0] == []
        assert not woken.done()
        requests.release()
        assert woken.done()
        [(_, request)] = fetcher._get_actions_per_node(assignment)[0]
        assert {topic for topic, _ in request.topics} == {"steps", "feedback"}

    run_with_fetcher(check)


def test_held_requests_do_not_hold_back_the_reset_of_a_position() -> None:
    async def check(fetcher: Fetcher, assignment: Any) -> None:
        assignment.state_value(IDLE).has_valid_position = False
        FetchRequests(fetcher).hold()
        requests, resets, *_ = fetcher._get_actions_per_node(assignment)
        assert (requests, dict(resets)) == ([], {1: [IDLE]})

    run_with_fetcher(check)
