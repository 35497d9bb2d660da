"""Provide an environment where an agent may write a malformed tool call, and a model that does.

    user  q:c        get({"key": "c"}) -> 7        ans(7)

An attempt has two replies; the outcome is 1 for the right number and 0 otherwise. Arguments pass through as the model
writes them, so `get({)` is a malformed call: the model's server rejects it, and the attempt ends. A reward
specification that pays more for an error than for an honest failure trains the model to break its calls.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from stepstream.services.fleet.environment import (
    Environment,
    Message,
    Split,
    ToolResult,
    function_tool,
    reply,
    tool_round,
    user,
)

KEYS = "abcdefgh"
BROKEN = "{"
BROKEN_SHARE = 0.2
"""Share of malformed calls among the demonstrations, and so among the first policy's calls."""
WRONG_SHARE = 0.5
"""Share of random numbers among the demonstrated answers."""


class Drawers(Environment):
    """One attempt at one task."""

    name: ClassVar[str] = "drawers"
    max_steps: ClassVar[int] = 3
    tools: ClassVar[list[dict[str, Any]]] = [function_tool("get", "What is in a drawer.", '{"key": "a"}')]

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        rng = random.Random(task_id)
        self._key = rng.choice(KEYS)
        self._drawers = {key: str(rng.randint(1, 9)) for key in KEYS}

    @classmethod
    def tasks(cls, seed: int, split: Split) -> Iterator[str]:
        """Yield task ids of one split without end."""
        rng = random.Random(f"{cls.name}/{seed}/{split}")
        while True:
            yield f"{cls.name}/{split}/{rng.getrandbits(48)}"

    @property
    def first_message(self) -> str:
        """The question, as `q:c`."""
        return f"q:{self._key}"

    def call(self, tool: str, argument: str) -> ToolResult:
        """Return the content of a drawer; `?` and an error if the arguments name none."""
        try:
            key = json.loads(argument)["key"]
        except (ValueError, KeyError, TypeError):
            return ToolResult("?", error=True)
        return ToolResult(self._drawers[key]) if key in self._drawers else ToolResult("?", error=True)

    def answer(self, text: str) -> float:
        """Return 1 for `ans(N)` with the number in the drawer, else 0."""
        return float(text == f"ans({self._drawers[self._key]})")

    def demonstration(self, rng: random.Random, noise: float) -> list[Message]:
        """Return an attempt that is malformed or wrong with the shares above; `noise` is ignored."""
        start = [user(self.first_message)]
        if rng.random() < BROKEN_SHARE:
            return [*start, tool_round("get", BROKEN, ToolResult("?"))[0]]
        result = self.call("get", arguments := json.dumps({"key": self._key}))
        number = str(rng.randint(1, 9)) if rng.random() < WRONG_SHARE else result.text
        return [*start, *tool_round("get", arguments, result), reply(f"ans({number})")]


def breaking_model(folder: Path) -> Path:
    """Train a tiny model on the demonstrations in `folder`: it breaks every fifth call. Takes seconds of a core."""
    from stepstream.learner.tiny.warm_start import WarmStart, warm_start
    from stepstream.services.fleet.environment import demonstrations

    warm_start(folder, demonstrations(Drawers, 0, 0.0), WarmStart(steps=100))
    # The demonstrations have the arguments as text; the serving model gets them as parsed JSON.
    template = folder / "chat_template.jinja"
    text = template.read_text()
    expression = "call.function.arguments.input"
    assert expression in text
    template.write_text(text.replace(expression, "call.function.arguments | tojson"))
    return folder
