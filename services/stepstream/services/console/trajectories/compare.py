"""Find the first difference between two attempts. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

Step = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two attempts begin to differ."""

    step: int
    """Position of the step, from 0."""
    part: str
    """`messages`, `reasoning`, `content` or `tool_calls` of the response, or `end`: one attempt has no such step."""
    item: int = 0
    """Number of the message or the call, from 0."""
    at: int = 0
    """Number of equal characters before the difference, in the part's text."""


def first_difference(left: Sequence[Step], right: Sequence[Step]) -> Difference | None:
    """Return the first difference of two attempts; None: both did the same.

    It compares what the agent saw and answered, in order, but no ids, times or tokens.

    Args:
        left: steps of one attempt with `messages` and `response`, in order.
        right: those of the other.
    """
    for number, (one, other) in enumerate(zip_longest(left, right)):
        if one is None or other is None:
            return Difference(number, "end")
        for part, mine, theirs in _parts(one, other):
            for item, (a, b) in enumerate(zip_longest(mine, theirs, fillvalue="")):
                if a != b:
                    return Difference(number, part, item, _equal_characters(a, b))
    return None


def message_text(message: Mapping[str, Any]) -> str:
    """Return a message as the text that `Difference.at` counts in."""
    calls = "".join(f"\n{text}" for text in call_texts(message))
    return f"{message['role']}: {message['content']}{calls}"


def call_texts(message: Mapping[str, Any]) -> list[str]:
    """Return the tool calls of a message as texts: name and arguments, without the id."""
    return [f"{call['name']} {call['arguments']}" for call in message.get("tool_calls") or ()]


def _parts(one: Step, other: Step) -> Iterator[tuple[str, list[str], list[str]]]:
    mine, theirs = one["response"], other["response"]
    yield "messages", [message_text(m) for m in one["messages"]], [message_text(m) for m in other["messages"]]
    for name in ("reasoning", "content"):
        yield name, [mine.get(name) or ""], [theirs.get(name) or ""]
    yield "tool_calls", call_texts(mine), call_texts(theirs)


def _equal_characters(a: str, b: str) -> int:
    return next((number for number, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
