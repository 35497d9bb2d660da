"""Run long work on an event loop in slices, so that other tasks run in between.

Work is a generator that yields about each 0.1 ms, so that it can pause there, and returns its result.
"""

import asyncio
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

SLICE_S = 0.002
"""Time for which work keeps the loop: delays of a stream's tokens below it are not noticed."""

T = TypeVar("T")
Work = Generator[None, None, T]


def at_once(work: Work[T]) -> T:
    """Run work to its end and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


async def in_slices(work: Work[T], lock: AbstractContextManager[object] | None = None) -> T:
    """Run work, with a turn of the event loop after each slice, and return its result.

    `lock` is held during each slice, and free in between.
    """
    while True:
        until = time.perf_counter() + SLICE_S
        with lock or nullcontext():
            try:
                while time.perf_counter() < until:
                    next(work)
            except StopIteration as end:
                result: T = end.value
                return result
        await asyncio.sleep(0)
