"""Ask for a sum over two values that only the environment knows: look both up, calculate, answer.

    user  q:a+c        get(a) -> 4        get(c) -> 7        calc(4+7) -> 11        ans(11)

An attempt takes three tool calls and a reply. The reward is 1 for exactly the right answer, otherwise 0. A task's
solution depends on its question and on the two values.
"""

import random
from dataclasses import dataclass
from typing import Any, ClassVar

from stepstream.services.fleet.arithmetic import ArithmeticSyntaxError, calculate
from stepstream.services.fleet.environment import Message, ToolResult, function_tool, reply, tool_round, user
from stepstream.services.fleet.numbered import NumberedEnvironment

KEYS = "abcdefgh"
OPERATORS = "+-*"
HIGHEST = 9
_INVALID = ToolResult("?", error=True)


@dataclass(frozen=True, slots=True)
class Question:
    """Two keys and an operator, and the values of all keys."""

    table: dict[str, int]
    left: str
    operator: str
    right: str


class Lookup(NumberedEnvironment[Question]):
    """One attempt at one lookup task."""

    name: ClassVar[str] = "lookup"
    max_steps: ClassVar[int] = 6
    tools: ClassVar[list[dict[str, Any]]] = [
        function_tool("get", "The value of a key.", f"one of {', '.join(KEYS)}"),
        function_tool("calc", "A calculator for whole numbers.", "an expression with + - * and parentheses"),
    ]

    @classmethod
    def make(cls, number: int) -> tuple[Question, str]:
        """Return a question, and its text with both values."""
        rng = random.Random(number)
        table = {key: rng.randint(1, HIGHEST) for key in KEYS}
        left, right = rng.sample(KEYS, 2)
        operator = rng.choice(OPERATORS)
        solution = f"{left}{operator}{right}={table[left]}{operator}{table[right]}"
        return Question(table, left, operator, right), solution

    @property
    def first_message(self) -> str:
        """The question, for example `q:a+c`."""
        task = self._task
        return f"q:{task.left}{task.operator}{task.right}"

    def call(self, tool: str, argument: str) -> ToolResult:
        """Return a key's value (`get`) or an expression's (`calc`); `?` for an invalid call."""
        if tool == "get" and argument in self._task.table:
            return ToolResult(str(self._task.table[argument]))
        if tool == "calc":
            try:
                return ToolResult(str(calculate(argument)))
            except ArithmeticSyntaxError:
                return _INVALID
        return _INVALID

    def answer(self, text: str) -> float:
        """Return 1 for `ans(N)` with the right number, otherwise 0."""
        task = self._task
        right = calculate(f"{task.table[task.left]}{task.operator}{task.table[task.right]}")
        return float(text == f"ans({right})")

    def demonstration(self, rng: random.Random, noise: float) -> list[Message]:
        """Return a solution whose every choice (key, number, operator, answer) is random with probability `noise`."""

        def choose(good: str, others: str) -> str:
            return rng.choice(others) if rng.random() < noise else good

        def number(good: str) -> str:
            return str(rng.randint(1, HIGHEST)) if rng.random() < noise else good

        messages = [user(self.first_message)]
        values = []
        for key in (self._task.left, self._task.right):
            chosen = choose(key, KEYS)
            result = self.call("get", chosen)
            values.append(number(result.text))
            messages += tool_round("get", chosen, result)
        expression = f"{values[0]}{choose(self._task.operator, OPERATORS)}{values[1]}"
        result = self.call("calc", expression)
        return [*messages, *tool_round("calc", expression, result), reply(f"ans({number(result.text)})")]
