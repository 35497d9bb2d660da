"""RE2's automata: in time linear in a text, whether and where patterns match, many of them in one pass."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import re2

_FOLLOWING = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that begin no character."""


def found(pattern: str, text: str) -> bool:
    """Whether a pattern of RE2 matches somewhere in a text."""
    return _compiled(pattern).search(encoded(text)) is not None


def spans(pattern: str, text: str) -> list[tuple[int, int]]:
    """Where a pattern of RE2 that tells no characters but ASCII ones apart matches, in order."""
    return [match.span() for match in _compiled(pattern).finditer(text.encode("ascii", "replace"))]


def spans_in(pattern: str, coded: bytes) -> list[tuple[int, int]]:
    """Where any pattern of RE2 matches in a text that was `encoded`, in characters."""
    places = [match.span() for match in _compiled(pattern).finditer(coded)]
    if coded.isascii():
        return places
    return [(_characters(coded[:start]), _characters(coded[:end])) for start, end in places]


def all_of(patterns: Iterable[str]) -> Any:
    """Patterns of RE2 as one automaton: its `Match(encoded text)` gives places of those that match, null for none."""
    automaton = re2.Set.SearchSet()
    for pattern in patterns:
        automaton.Add(pattern)
    automaton.Compile()
    return automaton


def encoded(text: str) -> bytes:
    """UTF-8 of any text, also where an escape that was undone left half of a character."""
    return text.encode("utf-8", "surrogatepass")


def _characters(coded: bytes) -> int:
    return len(coded.translate(None, _FOLLOWING))


@lru_cache
def _compiled(pattern: str) -> Any:
    return re2.compile(pattern)
