"""Which trajectory and step the running code belongs to: of this thread, or of this asyncio task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from stepstream.sdk.step import Step
    from stepstream.sdk.trajectory import Trajectory

T = TypeVar("T")


class Block(Generic[T]):
    """A `with` block that code may run in, and the one around it."""

    __slots__ = ("around", "left", "value")

    def __init__(self, value: T | None, around: Block[T] | None) -> None:
        self.value = value
        self.around = around
        self.left = False


Blocks = ContextVar[Block[T] | None]

trajectories: Blocks[Trajectory] = ContextVar("stepstream_trajectory", default=None)
steps: Blocks[Step] = ContextVar("stepstream_step", default=None)


def trajectory_here() -> Trajectory | None:
    """The trajectory in whose block the code runs, as long as that has not ended.

    An asynchronous generator that is not read to its end is closed in another context, so that its reader's would keep
    the trajectory for good.
    """
    block = _standing(trajectories.get())
    return None if block is None else block.value


def step_here() -> Step | None:
    """The step in whose block the code runs; a task that outlives the block still has it, while the trajectory runs."""
    block = steps.get()
    step = None if block is None else block.value
    return step if step is not None and step.trajectory is trajectory_here() else None


def enter(blocks: Blocks[T], value: T | None) -> Block[T]:
    """Begins a block."""
    block = Block(value, blocks.get())
    blocks.set(block)
    return block


def leave(blocks: Blocks[T], block: Block[T]) -> None:
    """Ends a block, in any order and in any context.

    Generators that take turns end their blocks crosswise, and frameworks may end one in another context than they began
    it in: whatever block the code is in now that has not ended stays, else the nearest around it.
    """
    block.left = True
    here = _standing(blocks.get())
    if here is not None:
        here.around = _standing(here.around)  # so that no chain of ended blocks grows
    blocks.set(here)


def _standing(block: Block[T] | None) -> Block[T] | None:
    while block is not None and block.left:
        block = block.around
    return block
