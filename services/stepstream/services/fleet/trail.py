"""Reward only the end of a long task: follow clues from one to the next, and answer with the last one's content.

    user  q:f     open(f) -> 3     dial(3) -> k     open(k) -> …     dial(8) -> !p     ans(p)

A letter is a box to open, a digit a number to dial; each gives the next clue. Only the current clue works: any other
call costs a step and returns `?` and the current clue. A trail has eleven clues, so an attempt takes 12 of at most 13
replies: it may contain one wrong step. The reward is 1 for exactly the right answer, otherwise 0. Every attempt at a
task meets the same clues, so rules that compare steps in the same state find matches.
"""

import random
import string
from typing import Any, ClassVar

from stepstream.services.fleet.environment import Message, ToolResult, function_tool, reply, tool_round, user
from stepstream.services.fleet.numbered import NumberedEnvironment

SYMBOLS = string.ascii_lowercase + string.digits
LENGTH = 11
"""Clues of a trail."""


class Trail(NumberedEnvironment[str]):
    """One attempt at one trail; its task is the clues, then the last one's content."""

    name: ClassVar[str] = "trail"
    max_steps: ClassVar[int] = LENGTH + 2
    tools: ClassVar[list[dict[str, Any]]] = [
        function_tool("open", "Opens a box.", "a letter"),
        function_tool("dial", "Dials a number.", "a digit"),
    ]

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self._clues = self._task
        self._position = 0

    @classmethod
    def make(cls, number: int) -> tuple[str, str]:
        """Return a trail's clues, none twice, then the last one's content; the solution depends on all of them."""
        clues = "".join(random.Random(number).sample(SYMBOLS, LENGTH + 1))
        return clues, clues

    @property
    def first_message(self) -> str:
        """The first clue, for example `q:f`."""
        return f"q:{self._clues[0]}"

    def call(self, tool: str, argument: str) -> ToolResult:
        """Return the next clue; for a wrong call `?` and the current clue."""
        if self._position < LENGTH and (tool, argument) == _right_call(self._clues[self._position]):
            self._position += 1
            return ToolResult(self._current())
        return ToolResult(f"?{self._current()}", error=True)

    def answer(self, text: str) -> float:
        """Return 1 for `ans(X)` with the last clue's content, otherwise 0."""
        return float(text == f"ans({self._clues[LENGTH]})")

    def demonstration(self, rng: random.Random, noise: float) -> list[Message]:
        """Return a conversation whose every choice is random with probability `noise`; `lost` if the steps run out."""

        def choose(good: str) -> str:
            return rng.choice(SYMBOLS) if rng.random() < noise else good

        attempt = Trail(self.task_id)
        messages = [user(attempt.first_message)]
        for _ in range(self.max_steps - 1):
            if attempt._position == LENGTH:
                break
            tool, argument = _right_call(choose(attempt._clues[attempt._position]))
            messages += tool_round(tool, argument, attempt.call(tool, argument))
        else:
            if attempt._position < LENGTH:
                return [*messages, reply("lost")]
        return [*messages, reply(f"ans({choose(attempt._clues[LENGTH])})")]

    def _current(self) -> str:
        return "!" * (self._position == LENGTH) + self._clues[self._position]


def _right_call(clue: str) -> tuple[str, str]:
    return "dial" if clue.isdigit() else "open", clue
