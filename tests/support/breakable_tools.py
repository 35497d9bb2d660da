"""An environment in which an agent may write a broken tool call instead of doing its work, and a model that does.

    user  q:c        get({"key": "c"}) -> 7        ans(7)

Two replies; the outcome is 1 for the right number and 0 for anything else. Arguments go through as the model writes
them, so that `get({)` is a malformed call: the model's server refuses to go on from it, and the attempt is over. A
specification that pays more for an attempt that ended in an error than for an honest failure teaches just that.
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
"""Share of broken calls among the demonstrations, and so of the first policy's."""
WRONG_SHARE = 0.5
"""Share of random numbers among the answers."""


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
        """Endless task ids of one split."""
        rng = random.Random(f"{cls.name}/{seed}/{split}")
        while True:
            yield f"{cls.name}/{split}/{rng.getrandbits(48)}"

    @property
    def first_message(self) -> str:
        """The question, as `q:c`."""
        return f"q:{self._key}"

    def call(self, tool: str, argument: str) -> ToolResult:
        """What is in a drawer; `?` where the arguments do not say which."""
        try:
            key = json.loads(argument)["key"]
        except (ValueError, KeyError, TypeError):
            return ToolResult("?", error=True)
        return ToolResult(self._drawers[key]) if key in self._drawers else ToolResult("?", error=True)

    def answer(self, text: str) -> float:
        """1 for `ans(N)` with the number in the drawer."""
        return float(text == f"ans({self._drawers[self._key]})")

    def demonstration(self, rng: random.Random, noise: float) -> list[Message]:
        """An attempt that is broken or wrong as often as is declared above; `noise` is not asked."""
        start = [user(self.first_message)]
        if rng.random() < BROKEN_SHARE:
            return [*start, tool_round("get", BROKEN, ToolResult("?"))[0]]
        found = self.call("get", arguments := json.dumps({"key": self._key}))
        number = str(rng.randint(1, 9)) if rng.random() < WRONG_SHARE else found.text
        return [*start, *tool_round("get", arguments, found), reply(f"ans({number})")]


def breaking_model(folder: Path) -> Path:
    """A tiny model that knows the two replies, breaks every fifth call and mostly answers wrong; seconds of a core."""
    from stepstream.learner.tiny.warm_start import WarmStart, warm_start
    from stepstream.services.fleet.environment import demonstrations

    warm_start(folder, demonstrations(Drawers, 0, 0.0), WarmStart(steps=100))
    # Its demonstrations show the arguments as a text; the model that serves gets them as the JSON that they are.
    template = folder / "chat_template.jinja"
    text = template.read_text()
    written = "call.function.arguments.input"
    assert written in text
    template.write_text(text.replace(written, "call.function.arguments | tojson"))
    return folder
