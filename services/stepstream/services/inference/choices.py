"""Generate several responses to one prompt at once: collect them, or stream their chunks."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from stepstream.services.inference.engine import TokenChunk

Generated = AsyncGenerator[TokenChunk, None]


async def collect(generated: Sequence[Generated]) -> list[list[TokenChunk]]:
    """Return the chunks of each response; raises as `Engine.generate` does, and then cancels the others."""
    if len(generated) == 1:
        return [await _chunks(generated[0])]
    tasks = [asyncio.create_task(_chunks(one)) for one in generated]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def stream(generated: Sequence[Generated]) -> AsyncGenerator[tuple[int, TokenChunk], None]:
    """Yield the chunks of all responses as they come, each with its response's number; raises as `collect` does."""
    if len(generated) == 1:
        async with aclosing(generated[0]) as only:
            async for chunk in only:
                yield 0, chunk
        return
    queue: asyncio.Queue[tuple[int, TokenChunk] | Exception] = asyncio.Queue()
    tasks = [asyncio.create_task(_enqueue(number, one, queue)) for number, one in enumerate(generated)]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            left -= item[1].finish_reason is not None
            yield item
    finally:
        await _cancel(tasks)


async def _chunks(generated: Generated) -> list[TokenChunk]:
    async with aclosing(generated):
        return [chunk async for chunk in generated]


async def _enqueue(
    number: int, generated: Generated, queue: "asyncio.Queue[tuple[int, TokenChunk] | Exception]"
) -> None:
    try:
        async with aclosing(generated):
            async for chunk in generated:
                queue.put_nowait((number, chunk))
    except Exception as error:
        queue.put_nowait(error)


async def _cancel(tasks: Sequence["asyncio.Task[list[TokenChunk]] | asyncio.Task[None]"]) -> None:
    """Cancel running tasks, and wait until they have freed their requests."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
