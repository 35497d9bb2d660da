"""A question over values that only the environment knows: look two up, calculate, answer.

    user  q:a+c        get(a) -> 4        get(c) -> 7        calc(4+7) -> 11        ans(11)

Three tool calls and a reply; the reward is 1 for exactly the right answer and 0 for anything else. A task's id
holds the number that it is generated from. Which split a task belongs to follows from a digest of everything
that its solution depends on, so a held-out question is never met in training, whatever the seeds.
"""

import hashlib
import random
from collections.abc import Iterator
from typing import Any, ClassVar

from stepstream.services.fleet.arithmetic import ArithmeticSyntaxError, calculate
from stepstream.services.fleet.environment import (
    Environment,
    Message,
    Split,
    ToolResult,
    UnknownTaskError,
    function_tool,
    reply,
    tool_round,
    user,
)

KEYS = "abcdefgh"
OPERATORS = "+-*"
HIGHEST = 9
_EVAL_SHARE = 8  # one task in eight is held out
_NOT_UNDERSTOOD = ToolResult("?", error=True)


class Lookup(Environment):
    """One attempt at one lookup task."""

    name: ClassVar[str] = "lookup"
    max_steps: ClassVar[int] = 6
    tools: ClassVar[list[dict[str, Any]]] = [
        function_tool("get", "The value of a key.", f"one of {', '.join(KEYS)}"),
        function_tool("calc", "A calculator for whole numbers.", "an expression with + - * and parentheses"),
    ]

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self._table, self._left, self._operator, self._right, split = _generate(_number(task_id))
        if task_id.split("/")[1] != split:
            raise UnknownTaskError(f"task '{task_id}' is in the other split: lookup/{split}/…")

    @classmethod
    def tasks(cls, seed: int, split: Split) -> Iterator[str]:
        """Endless task ids of one split."""
        rng = random.Random(f"{cls.name}/{seed}/{split}")
        while True:
            number = rng.getrandbits(48)
            if _generate(number)[-1] == split:
                yield f"{cls.name}/{split}/{number}"

    @property
    def first_message(self) -> str:
        """The question, such as `q:a+c`."""
        return f"q:{self._left}{self._operator}{self._right}"

    def call(self, tool: str, argument: str) -> ToolResult:
        """`get` a key's value or `calc` an expression; `?` where that makes no sense."""
        if tool == "get" and argument in self._table:
            return ToolResult(str(self._table[argument]))
        if tool == "calc":
            try:
                return ToolResult(str(calculate(argument)))
            except ArithmeticSyntaxError:
                return _NOT_UNDERSTOOD
        return _NOT_UNDERSTOOD

    def answer(self, text: str) -> float:
        """1 for `ans(N)` with the right number, otherwise 0."""
        right = calculate(f"{self._table[self._left]}{self._operator}{self._table[self._right]}")
        return float(text == f"ans({right})")

    def demonstration(self, rng: random.Random, noise: float) -> list[Message]:
        """A solution whose every choice (key, number, operator, answer) is random with probability `noise`."""

        def choose(good: str, others: str) -> str:
            return rng.choice(others) if rng.random() < noise else good

        def number(good: str) -> str:
            return str(rng.randint(1, HIGHEST)) if rng.random() < noise else good

        messages = [user(self.first_message)]
        values = []
        for key in (self._left, self._right):
            asked = choose(key, KEYS)
            result = self.call("get", asked)
            values.append(number(result.text))
            messages += tool_round("get", asked, result)
        expression = f"{values[0]}{choose(self._operator, OPERATORS)}{values[1]}"
        result = self.call("calc", expression)
        return [*messages, *tool_round("calc", expression, result), reply(f"ans({number(result.text)})")]


def _number(task_id: str) -> int:
    parts = task_id.split("/")
    if len(parts) != 3 or parts[0] != "lookup" or not parts[2].isdecimal():
        raise UnknownTaskError(f"no such task: '{task_id}' (a task is lookup/train/N or lookup/eval/N)")
    return int(parts[2])


def _generate(number: int) -> tuple[dict[str, int], str, str, str, Split]:
    rng = random.Random(number)
    table = {key: rng.randint(1, HIGHEST) for key in KEYS}
    left, right = rng.sample(KEYS, 2)
    operator = rng.choice(OPERATORS)
    solution = f"{left}{operator}{right}={table[left]}{operator}{table[right]}"
    held_out = hashlib.sha256(solution.encode()).digest()[0] % _EVAL_SHARE == 0
    return table, left, operator, right, "eval" if held_out else "train"
