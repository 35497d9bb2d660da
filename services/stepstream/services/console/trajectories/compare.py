"""Find the first difference between two attempts. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

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

    It compares what the agent saw and answered, in order, but no ids, times or tokens. Of texts that were cut
    (`lengths`), it compares the beginning and the whole length: see `is_whole`.

    Args:
        left: steps of one attempt with `messages` and `response`, in order.
        right: those of the other.
    """
    for number, (one, other) in enumerate(zip_longest(left, right)):
        if one is None or other is None:
            return Difference(number, "end")
        for part, mine, theirs in _parts(one, other):
            for item, (a, b) in enumerate(zip_longest(mine, theirs, fillvalue=_NOTHING)):
                if a != b:
                    return Difference(number, part, item, _equal_characters(a.text, b.text))
    return None


def is_whole(steps: Sequence[Step]) -> bool:
    """Return True if none of the steps' texts was cut."""
    messages = [message for step in steps for message in (*step["messages"], step["response"])]
    return not any(one.get("lengths") for message in messages for one in (message, *(message.get("tool_calls") or ())))


def message_text(message: Mapping[str, Any]) -> str:
    """Return a message as the text that `Difference.at` counts in."""
    calls = "".join(f"\n{text}" for text in call_texts(message))
    return f"{message['role']}: {message['content']}{calls}"


def call_texts(message: Mapping[str, Any]) -> list[str]:
    """Return the tool calls of a message as texts: name and arguments, without the id."""
    return [f"{call['name']} {call['arguments']}" for call in message.get("tool_calls") or ()]


class _Text(NamedTuple):
    """A text that is compared."""

    text: str
    lengths: tuple[int | None, ...] = ()
    """Whole lengths of its parts; None: a part was not cut."""


_NOTHING = _Text("")


def _parts(one: Step, other: Step) -> Iterator[tuple[str, list[_Text], list[_Text]]]:
    mine, theirs = one["response"], other["response"]
    yield "messages", _messages(one), _messages(other)
    for name in ("reasoning", "content"):
        yield name, [_field(mine, name)], [_field(theirs, name)]
    yield "tool_calls", _calls(mine), _calls(theirs)


def _messages(step: Step) -> list[_Text]:
    return [
        _Text(message_text(one), (_length(one, "content"), *(call.lengths[0] for call in _calls(one))))
        for one in step["messages"]
    ]


def _field(response: Mapping[str, Any], name: str) -> _Text:
    return _Text(response.get(name) or "", (_length(response, name),))


def _calls(message: Mapping[str, Any]) -> list[_Text]:
    calls = message.get("tool_calls") or ()
    return [_Text(text, (_length(call, "arguments"),)) for text, call in zip(call_texts(message), calls, strict=True)]


def _length(value: Mapping[str, Any], name: str) -> int | None:
    length: int | None = (value.get("lengths") or {}).get(name)
    return length


def _equal_characters(a: str, b: str) -> int:
    return next((number for number, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
