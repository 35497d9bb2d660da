"""Several responses to one prompt at once: all of them whole, or their chunks as they come."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from stepstream.services.inference.engine import TokenChunk

Generated = AsyncGenerator[TokenChunk, None]


async def whole(generated: Sequence[Generated]) -> list[list[TokenChunk]]:
    """The chunks of each; where one fails, the others are left. Raises as `Engine.generate` does."""
    if len(generated) == 1:
        return [await _chunks(generated[0])]
    tasks = [asyncio.create_task(_chunks(one)) for one in generated]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def merged(generated: Sequence[Generated]) -> AsyncGenerator[tuple[int, TokenChunk], None]:
    """Chunks of all as they come, with the number of the response. Raises as `Engine.generate` does."""
    if len(generated) == 1:
        async with aclosing(generated[0]) as only:
            async for chunk in only:
                yield 0, chunk
        return
    made: asyncio.Queue[tuple[int, TokenChunk] | Exception] = asyncio.Queue()
    tasks = [asyncio.create_task(_hand_over(number, one, made)) for number, one in enumerate(generated)]
    try:
        left = len(tasks)
        while left:
            item = await made.get()
            if isinstance(item, Exception):
                raise item
            left -= item[1].finish_reason is not None
            yield item
    finally:
        await _end(tasks)


async def _chunks(generated: Generated) -> list[TokenChunk]:
    async with aclosing(generated):
        return [chunk async for chunk in generated]


async def _hand_over(
    number: int, generated: Generated, made: "asyncio.Queue[tuple[int, TokenChunk] | Exception]"
) -> None:
    try:
        async with aclosing(generated):
            async for chunk in generated:
                made.put_nowait((number, chunk))
    except Exception as error:
        made.put_nowait(error)


async def _end(tasks: Sequence["asyncio.Task[list[TokenChunk]] | asyncio.Task[None]"]) -> None:
    """Leaves what has not ended, and waits until it has let go."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
