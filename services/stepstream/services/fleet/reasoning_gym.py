"""Tasks of the reasoning-gym package in our environment's shape: `chain_sum`, with a calculator.

    user  q:4+7-2        calc(4+7-2) -> 9        ans(9)

Only tasks whose generator and scorer were found sound belong here: several of reasoning-gym 0.1.25 change with
Python's hash seed, or pay for any text. A task's id holds its index in the data set; the split follows from a digest
of the expression, since short ones come up again under other indices.
"""

import functools
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

_SIZE = 2**31
_EVAL_SHARE = 8  # one expression in eight is held out
_NOT_UNDERSTOOD = ToolResult("?", error=True)


class ChainSum(Environment):
    """One attempt at a sum of two or three numbers of one digit."""

    name: ClassVar[str] = "chain_sum"
    max_steps: ClassVar[int] = 3
    tools: ClassVar[list[dict[str, Any]]] = [
        function_tool("calc", "A calculator for whole numbers.", "an expression with + - * and parentheses"),
    ]

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self._entry, self._expression = _item(_index(task_id))
        split = _split(self._expression)
        if task_id.split("/")[1] != split:
            raise UnknownTaskError(f"task '{task_id}' is in the other split: chain_sum/{split}/…")

    @classmethod
    def tasks(cls, seed: int, split: Split) -> Iterator[str]:
        """Endless task ids of one split."""
        rng = random.Random(f"{cls.name}/{seed}/{split}")
        while True:
            index = rng.randrange(_SIZE)
            if _split(_item(index)[1]) == split:
                yield f"{cls.name}/{split}/{index}"

    @property
    def first_message(self) -> str:
        """The question, such as `q:4+7-2`."""
        return f"q:{self._expression}"

    def call(self, tool: str, argument: str) -> ToolResult:
        """`calc` an expression; `?` where that makes no sense."""
        if tool != "calc":
            return _NOT_UNDERSTOOD
        try:
            return ToolResult(str(calculate(argument)))
        except ArithmeticSyntaxError:
            return _NOT_UNDERSTOOD

    def answer(self, text: str) -> float:
        """1 for `ans(N)` that reasoning-gym's own scorer takes for right, otherwise 0."""
        if not (text.startswith("ans(") and text.endswith(")")):
            return 0.0
        return float(_data().score_answer(answer=text[4:-1], entry=self._entry) >= 1.0)

    def demonstration(self, rng: random.Random, noise: float) -> list[Message]:
        """A solution whose every character and answer is random with probability `noise`."""

        def number(good: str) -> str:
            return str(rng.randrange(10)) if rng.random() < noise else good

        def operator(good: str) -> str:
            return rng.choice("+-") if rng.random() < noise else good

        expression = "".join(operator(char) if char in "+-" else number(char) for char in self._expression)
        result = self.call("calc", expression)
        answer = reply(f"ans({number(result.text)})")
        return [user(self.first_message), *tool_round("calc", expression, result), answer]


@functools.cache
def _data() -> Any:
    import reasoning_gym  # takes seconds to import

    return reasoning_gym.create_dataset(
        "chain_sum", size=_SIZE, seed=0, min_terms=2, max_terms=3, min_digits=1, max_digits=1
    )


def _item(index: int) -> tuple[dict[str, Any], str]:
    """An entry of the data set, and the bare expression of its question."""
    entry = _data()[index]
    expression = entry["question"].rpartition(":")[2].replace("=", "").replace(" ", "")
    return entry, expression.strip()


def _index(task_id: str) -> int:
    parts = task_id.split("/")
    if len(parts) != 3 or parts[0] != "chain_sum" or not parts[2].isdecimal() or int(parts[2]) >= _SIZE:
        raise UnknownTaskError(f"no such task: '{task_id}' (a task is chain_sum/train/N or chain_sum/eval/N)")
    return int(parts[2])


def _split(expression: str) -> Split:
    held_out = hashlib.sha256(expression.encode()).digest()[0] % _EVAL_SHARE == 0
    return "eval" if held_out else "train"
