"""Which trajectory and step the running code belongs to: of this thread, or of this asyncio task."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from stepstream.sdk.step import Step
    from stepstream.sdk.trajectory import Trajectory

T = TypeVar("T")

trajectory_here: ContextVar[Trajectory | None] = ContextVar("stepstream_trajectory", default=None)
step_here: ContextVar[Step | None] = ContextVar("stepstream_step", default=None)


def leave(variable: ContextVar[T], token: Token[T]) -> None:
    """Undoes a `set`, also where a framework leaves a block in another context than it entered it in."""
    try:
        variable.reset(token)
    except ValueError:
        if token.old_value is not Token.MISSING:
            variable.set(token.old_value)
