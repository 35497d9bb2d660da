"""The transport's fetches, over a scripted aiokafka consumer."""

from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from stepstream.jobs.runtime.transport import _ConsumerThread

STEPS = TP("steps", 0)


class ScriptedThread(_ConsumerThread):
    """A consumer thread whose consumer holds prefetched records, and fetches others once these are taken."""

    def __init__(self, prefetched: list[int], on_broker: list[int], within_s: float = 0.0) -> None:
        self.prefetched, self.on_broker = prefetched, on_broker
        self.limits = SimpleNamespace(max_records=4, within_s=within_s, prefix="")
        self.transport = self.limits  # type: ignore[assignment]
        self.consumer = SimpleNamespace(flow_active=True)  # type: ignore[assignment]
        self._fetched_s = 0.0
        self._position = self._before = 0

    def _ensure_consumer(self) -> Any:
        return None

    def member(self) -> Any:
        return "member"

    async def _fetch_records(self, consumer: Any, active: Any, timeout: Any = None, max_records: Any = None) -> Any:
        if not self.prefetched and timeout:
            self.prefetched, self.on_broker = self.on_broker, []
        taken, self.prefetched = self.prefetched[:max_records], self.prefetched[max_records:]
        self._position += len(taken)
        message = {"topic": STEPS.topic, "partition": STEPS.partition, "timestamp": 0, "key": None, "value": b""}
        return {STEPS: [SimpleNamespace(offset=offset, **message) for offset in taken]} if taken else {}

    def _moved_positions(self, consumer: Any, active: Any) -> Any:
        before, self._before = self._before, self._position
        return {STEPS: (before, self._position)} if self._position > before else {}

    async def offsets(self) -> list[int]:
        """Return the offsets of one fetch."""
        fetch = await self._fetch(None, 1.0)
        return [] if fetch is None else [record.offset for record in fetch.records]


async def test_records_that_came_during_a_batch_join_those_that_were_fetched_before_it() -> None:
    assert await ScriptedThread([0], [1, 2]).offsets() == [0, 1, 2]


async def test_a_fetch_waits_for_its_first_record_only() -> None:
    assert await ScriptedThread([], [0, 1]).offsets() == [0, 1]
    assert await ScriptedThread([], []).offsets() == []


@pytest.mark.parametrize("within_s", [0.0, 60.0])
async def test_a_full_fetch_leaves_the_rest_to_the_next(within_s: float) -> None:
    thread = ScriptedThread([0, 1, 2], [3, 4, 5], within_s)
    assert await thread.offsets() == [0, 1, 2, 3]
    thread.limits.within_s = 0.0
    assert await thread.offsets() == [4, 5]


async def test_a_fetch_ends_while_the_partitions_are_revoked() -> None:
    thread = ScriptedThread([0], [], within_s=60.0)
    thread.consumer.flow_active = False
    assert await thread.offsets() == []
