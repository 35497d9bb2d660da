"""A long errand that pays nothing on the way: follow clues from one to the next, and tell what the last one holds.

    user  q:f     open(f) -> 3     dial(3) -> k     open(k) -> …     dial(8) -> !p     ans(p)

A letter is a box to open, a digit a number to dial; each gives the next clue, and nothing but the clue in hand works:
anything else costs a step and is answered with `?` and that clue. A trail has eleven clues, so an attempt takes 12
replies of at most 13: one wrong step is forgiven. The reward is 1 for exactly the right answer and 0 for anything else.
The same clues come up in every attempt at one task, so rules that compare steps in the same state find such steps.
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
    """One attempt at one trail; its task is the clues and what the last one holds."""

    name: ClassVar[str] = "trail"
    max_steps: ClassVar[int] = LENGTH + 2
    tools: ClassVar[list[dict[str, Any]]] = [
        function_tool("open", "Opens a box.", "a letter"),
        function_tool("dial", "Dials a number.", "a digit"),
    ]

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self._clues = self._task
        self._at = 0

    @classmethod
    def make(cls, number: int) -> tuple[str, str]:
        """The clues of a trail, none twice, and what the last one holds: its solution depends on all of them."""
        clues = "".join(random.Random(number).sample(SYMBOLS, LENGTH + 1))
        return clues, clues

    @property
    def first_message(self) -> str:
        """The first clue, such as `q:f`."""
        return f"q:{self._clues[0]}"

    def call(self, tool: str, argument: str) -> ToolResult:
        """The next clue for the one in hand; `?` and that clue for anything else."""
        if self._at < LENGTH and (tool, argument) == _right_call(self._clues[self._at]):
            self._at += 1
            return ToolResult(self._in_hand())
        return ToolResult(f"?{self._in_hand()}", error=True)

    def answer(self, text: str) -> float:
        """1 for `ans(X)` with what the last clue holds, otherwise 0."""
        return float(text == f"ans({self._clues[LENGTH]})")

    def demonstration(self, rng: random.Random, noise: float) -> list[Message]:
        """A walk whose every choice is random with probability `noise`; `lost` where the steps run out."""

        def choose(good: str) -> str:
            return rng.choice(SYMBOLS) if rng.random() < noise else good

        attempt = Trail(self.task_id)
        messages = [user(attempt.first_message)]
        for _ in range(self.max_steps - 1):
            if attempt._at == LENGTH:
                break
            tool, argument = _right_call(choose(attempt._clues[attempt._at]))
            messages += tool_round(tool, argument, attempt.call(tool, argument))
        else:
            if attempt._at < LENGTH:
                return [*messages, reply("lost")]
        return [*messages, reply(f"ans({choose(attempt._clues[LENGTH])})")]

    def _in_hand(self) -> str:
        return "!" * (self._at == LENGTH) + self._clues[self._at]


def _right_call(clue: str) -> tuple[str, str]:
    return "dial" if clue.isdigit() else "open", clue
