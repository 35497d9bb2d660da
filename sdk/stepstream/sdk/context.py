"""Track the `with` blocks that the running code is inside, for each thread and each asyncio task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class Block(Generic[T]):
    """A `with` block and the block around it."""

    __slots__ = ("has_ended", "outer", "value")

    def __init__(self, value: T | None, outer: Block[T] | None) -> None:
        self.value = value
        self.outer = outer
        self.has_ended = False


Blocks = ContextVar[Block[T] | None]


def enter_block(blocks: Blocks[T], value: T | None) -> Block[T]:
    """Begin a block."""
    block = Block(value, blocks.get())
    blocks.set(block)
    return block


def leave_block(blocks: Blocks[T], block: Block[T]) -> None:
    """End a block, in any order and in any context.

    Interleaved generators end their blocks out of order, and frameworks end a block in another context than it began
    in. The innermost open block of this context stays the current one.
    """
    block.has_ended = True
    current = _open_block(blocks.get())
    if current is not None:
        current.outer = _open_block(current.outer)  # or ended blocks would form a growing chain
    blocks.set(current)


def current_value(blocks: Blocks[T]) -> T | None:
    """Return the value of the innermost open block; None: the code is in no block.

    The block may have ended in another context: asyncio closes an abandoned asynchronous generator in a task of its
    own, and the reader's context would keep the block forever.
    """
    block = _open_block(blocks.get())
    return None if block is None else block.value


def _open_block(block: Block[T] | None) -> Block[T] | None:
    while block is not None and block.has_ended:
        block = block.outer
    return block
