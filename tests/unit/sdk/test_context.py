"""The current trajectory and step follow generators and asyncio tasks."""

import asyncio
from collections.abc import AsyncGenerator, Iterator

from stepstream import sdk


def test_interleaved_generators_leave_no_open_trajectory(sink: sdk.MemorySink) -> None:
    def agent(name: str) -> Iterator[str]:
        with sdk.trajectory(name):
            yield name
            yield sdk.current().info.task_id

    one, other, third = agent("one"), agent("other"), agent("third")
    next(one), next(other)
    assert list(one)
    next(third)
    assert next(other) == "third"  # generators share one context
    assert list(other) == []
    assert next(third) == "third"
    assert list(third) == []
    assert (sdk.current().is_recorded, sdk.current_step()) == (False, None)


async def test_a_task_may_outlive_its_step_and_a_reader_may_stop_early(sink: sdk.MemorySink) -> None:
    @sdk.tool
    async def look(until: asyncio.Event) -> None:
        await until.wait()

    over = asyncio.Event()
    async with sdk.trajectory() as t:
        async with t.step():
            task = asyncio.create_task(look(over))
            await asyncio.sleep(0)
        over.set()
        await task
        assert [(entry["name"], entry["step_index"]) for entry in sink.of("feedback")] == [("tool", 0)]

    async def agent() -> AsyncGenerator[int, None]:
        async with sdk.trajectory() as t, t.step():
            yield 1

    reading = agent()
    assert await anext(reading) == 1
    await asyncio.create_task(reading.aclose())  # as the loop closes it, in another context
    assert (sdk.current().is_recorded, sdk.current_step()) == (False, None)
