"""Long work on an event loop lets other tasks run in between, and gives the same result."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from stepstream.core import slices
from stepstream.core.slices import SLICE_S, Work, at_once, in_slices


def work(steps: int, lock: "threading.Lock | None" = None) -> Work[int]:
    for _ in range(steps):
        assert lock is None or lock.locked()
        yield
    return steps


@pytest.fixture
def steps_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let each look at the clock take a tenth of a slice."""
    clock = iter(number * SLICE_S / 10 for number in range(10_000))
    monkeypatch.setattr(slices, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    return 10


async def test_other_tasks_run_after_each_slice_without_the_lock(steps_of_a_slice: int) -> None:
    lock = threading.Lock()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += not lock.locked()
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    assert await in_slices(work(200, lock), lock) == 200
    other.cancel()
    assert turns >= 200 // steps_of_a_slice


async def test_the_result_and_the_error_are_those_of_the_work() -> None:
    def fails() -> Work[int]:
        yield
        raise KeyError("missing")

    assert at_once(work(3)) == await in_slices(work(3)) == 3
    lock = threading.Lock()
    with pytest.raises(KeyError, match="missing"):
        await in_slices(fails(), lock)
    assert not lock.locked()
