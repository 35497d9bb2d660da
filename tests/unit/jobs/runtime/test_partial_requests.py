"""A request to the broker that leaves out partitions, whose records wait here, does not wait long for the others."""

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher

from stepstream.jobs.runtime.transport import limit_partial_waits

BUSY, IDLE = TopicPartition("steps", 0), TopicPartition("feedback", 0)


@pytest.mark.parametrize(
    ("waiting_here", "requested", "wait_ms"), [((), {"steps", "feedback"}, 1500), ((BUSY,), {"feedback"}, 200)]
)
def test_only_a_request_for_all_partitions_waits_long(
    waiting_here: tuple[TopicPartition, ...], requested: set[str], wait_ms: int
) -> None:
    async def run() -> None:
        cluster = SimpleNamespace(leader_for_partition=lambda _: 1)
        client = SimpleNamespace(_loop=asyncio.get_running_loop(), _metadata_max_age_ms=1000, cluster=cluster)
        nothing = SimpleNamespace(register_fetch_waiters=lambda _: None, subscription=None)
        nothing.wait_for_assignment = asyncio.Event().wait
        fetcher = Fetcher(client, nothing, fetch_max_wait_ms=1500)
        limit_partial_waits(fetcher)
        state = SimpleNamespace(has_valid_position=True, paused=False, position=0)
        assignment = SimpleNamespace(tps=[BUSY, IDLE], state_value=lambda _: state)
        fetcher._records |= {tp: SimpleNamespace(calculate_backoff=lambda: 0) for tp in waiting_here}
        [(_, request)] = fetcher._get_actions_per_node(assignment)[0]
        assert {topic for topic, _ in request.topics} == requested
        assert request._max_wait_ms == wait_ms
        await fetcher.close()

    asyncio.run(run())
