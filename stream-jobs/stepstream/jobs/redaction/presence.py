"""Which of many patterns a text has at all, and where: in time linear in its length.

Almost every pattern is absent from almost every text. RE2 runs a set of patterns as one automaton, several times
faster than looking for each; where the matches are is then asked only of those that have any.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import re2


class Literals:
    """A set of lower-case literals."""

    def __init__(self, literals: Iterable[str]) -> None:
        self._literals = sorted(set(literals))
        self._set = _compiled([re.escape(literal) for literal in self._literals])

    def of(self, lowered: bytes) -> set[str]:
        """Those in a text that was made lower-case and encoded as UTF-8."""
        return {self._literals[index] for index in _matched(self._set, lowered)}


class Patterns:
    """A set of patterns, which must be such as Python's `re` and RE2 read alike."""

    def __init__(self, patterns: Sequence["re.Pattern[str]"]) -> None:
        self._set = _compiled([_alike(pattern) for pattern in patterns])

    def of(self, text: bytes) -> set[int]:
        """Indices of those that match somewhere in a text, encoded as UTF-8."""
        return set(_matched(self._set, text))


def spans(pattern: "re.Pattern[str]", text: str) -> list[tuple[int, int]]:
    """Where a pattern matches, in order; the pattern must be one that `re` and RE2 read alike."""
    if not text.isascii():  # RE2 counts bytes
        return [match.span() for match in pattern.finditer(text)]
    return [match.span() for match in _in_re2(pattern).finditer(text.encode())]


@lru_cache
def _in_re2(pattern: "re.Pattern[str]") -> Any:
    return re2.compile(_alike(pattern))


def _alike(pattern: "re.Pattern[str]") -> str:
    """A pattern for RE2, which has its own word for digits of all scripts and needs none for giving nothing back."""
    return pattern.pattern.replace(r"\d", r"\p{Nd}").replace("}+", "}")


def _compiled(patterns: Sequence[str]) -> "re2.Set":
    found = re2.Set.SearchSet()
    for pattern in patterns:
        found.Add(pattern)
    found.Compile()
    return found


def _matched(patterns: "re2.Set", text: bytes) -> Sequence[int]:
    return patterns.Match(text) or ()


def encoded(text: str) -> bytes:
    """UTF-8 of any text, also where an escape that was undone left half of a character."""
    return text.encode("utf-8", "surrogatepass")
