"""Offer reasoning-gym's `chain_sum` tasks as an environment, with a calculator.

    user  q:4+7-2        calc(4+7-2) -> 9        ans(9)

Add only tasks with a checked generator and scorer: several of reasoning-gym 0.1.25 change with Python's hash seed, or
reward any text. A task's number is its index in the data set. Its solution depends on the expression only, because
short expressions recur under other indices.
"""

import functools
import random
from dataclasses import dataclass
from typing import Any, ClassVar

from stepstream.services.fleet.arithmetic import ArithmeticSyntaxError, calculate
from stepstream.services.fleet.environment import Message, ToolResult, function_tool, reply, tool_round, user
from stepstream.services.fleet.numbered import NumberedEnvironment

_SIZE = 2**31
_INVALID = ToolResult("?", error=True)


@dataclass(frozen=True, slots=True)
class Sum:
    """An entry of the data set, which its scorer needs, and the expression of its question."""

    entry: dict[str, Any]
    expression: str


class ChainSum(NumberedEnvironment[Sum]):
    """One attempt at a sum of two or three numbers of one digit."""

    name: ClassVar[str] = "chain_sum"
    max_steps: ClassVar[int] = 3
    numbers: ClassVar[int | None] = _SIZE
    tools: ClassVar[list[dict[str, Any]]] = [
        function_tool("calc", "A calculator for whole numbers.", "an expression with + - * and parentheses"),
    ]

    @classmethod
    def make(cls, number: int) -> tuple[Sum, str]:
        """Return the sum at an index of the data set, and its expression."""
        entry = _data()[number]
        expression = entry["question"].rpartition(":")[2].replace("=", "").replace(" ", "").strip()
        return Sum(entry, expression), expression

    @property
    def first_message(self) -> str:
        """The question, for example `q:4+7-2`."""
        return f"q:{self._task.expression}"

    def call(self, tool: str, argument: str) -> ToolResult:
        """Return an expression's value (`calc`); `?` for an invalid call."""
        if tool != "calc":
            return _INVALID
        try:
            return ToolResult(str(calculate(argument)))
        except ArithmeticSyntaxError:
            return _INVALID

    def answer(self, text: str) -> float:
        """Return 1 for `ans(N)` that reasoning-gym's own scorer accepts, otherwise 0."""
        if not (text.startswith("ans(") and text.endswith(")")):
            return 0.0
        return float(_data().score_answer(answer=text[4:-1], entry=self._task.entry) >= 1.0)

    def demonstration(self, rng: random.Random, noise: float) -> list[Message]:
        """Return a solution whose every character and answer is random with probability `noise`."""

        def number(good: str) -> str:
            return str(rng.randrange(10)) if rng.random() < noise else good

        def operator(good: str) -> str:
            return rng.choice("+-") if rng.random() < noise else good

        expression = "".join(operator(char) if char in "+-" else number(char) for char in self._task.expression)
        result = self.call("calc", expression)
        answer = reply(f"ans({number(result.text)})")
        return [user(self.first_message), *tool_round("calc", expression, result), answer]


@functools.cache
def _data() -> Any:
    import reasoning_gym  # takes seconds to import

    return reasoning_gym.create_dataset(
        "chain_sum", size=_SIZE, seed=0, min_terms=2, max_terms=3, min_digits=1, max_digits=1
    )
