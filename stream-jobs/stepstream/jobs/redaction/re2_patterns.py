"""Translate patterns of Python's `re` to RE2 patterns that match every text that they match, and few others.

RE2 matches many patterns in one pass, in time linear in the text. But it has no lookaround and no back references, and
long repetitions make its automata large. So `relax` drops or loosens the parts that only narrow a match: lookahead,
upper bounds of repetitions, back references. It keeps a negative lookaround of one character: otherwise each digit of
a long number could start a short one. The parser of `re` reads the patterns.

Classes are exact for ASCII only: a class that may contain another character contains all of them. Digits of other
scripts, and letters that fold to ASCII letters, are missing from ASCII classes: texts with them match `FOREIGN`.
"""

import importlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import re2

_parser: Any = importlib.import_module("re._parser")
_op: Any = importlib.import_module("re._constants")

_LONGEST = 8
"""Largest lower bound of a repetition."""
_EXACT = 4
"""Largest upper bound of a repetition; a larger one becomes unbounded, which needs no counting."""
_FAR = 400
"""Longest match, in characters, for which searching only around a hint is faster."""
_ASCII = frozenset(range(128))
_OTHERS = r"\x{80}-\x{10ffff}"
_CATEGORIES = {
    _op.CATEGORY_DIGIT: r"\d",
    _op.CATEGORY_NOT_DIGIT: r"\D",
    _op.CATEGORY_WORD: r"\w",
    _op.CATEGORY_NOT_WORD: r"\W",
    _op.CATEGORY_SPACE: r"\s",
    _op.CATEGORY_NOT_SPACE: r"\S",
}

FOREIGN = r"[^\P{Nd}0-9]|[\x{130}\x{131}\x{17f}\x{212a}]"
"""RE2: a digit of another script, which `\\d` matches too, or a letter that folds to an ASCII one."""


def relax(pattern: str, flags: int = 0) -> str:
    """Translate a pattern to RE2; empty if the result would match every text.

    Raises:
        ValueError: a flag other than IGNORECASE, or an unknown construct.
    """
    parsed = _parser.parse(pattern, flags)
    _check_flags(parsed.state.flags & ~re.UNICODE)
    loose = _Relaxing().sequence(parsed, first=True, last=True)
    return f"(?i:{loose})" if loose and parsed.state.flags & re.IGNORECASE else loose


def max_length(pattern: str, flags: int = 0) -> int | None:
    """Return the length of the longest match of a pattern, in characters; None: above 400."""
    most: int = _parser.parse(pattern, flags).getwidth()[1]
    return most if most <= _FAR else None


class _Relaxing:
    """Walks one parsed pattern. `first` and `last`: nothing else of the pattern is before, or after."""

    def __init__(self) -> None:
        self._groups: dict[int, Any] = {}

    def sequence(self, items: Iterable[Any], *, first: bool, last: bool) -> str:
        """Translate a sequence of items, with the characters that must not surround it."""
        items = list(items)
        before, after = set[int](), set[int]()
        while first and items and items[0][0] in (_op.ASSERT, _op.ASSERT_NOT):
            before |= _excluded(items.pop(0), ahead=False)
        while last and items and items[-1][0] in (_op.ASSERT, _op.ASSERT_NOT):
            kind, (direction, inner) = items[-1]
            if kind is _op.ASSERT and direction > 0 and not after:
                items[-1:] = inner  # a positive lookahead matches as an ordinary sequence
            else:
                after |= _excluded(items.pop(), ahead=True)
        self._groups.update({operand[0]: operand[3] for kind, operand in items if kind is _op.SUBPATTERN})
        made: list[str] = []
        for place in reversed(range(len(items))):
            outermost = first and not before and place == 0
            made.insert(0, self._item(items, place, first=outermost, last=last and not after and not any(made)))
        loose = "".join(made)
        if not loose:
            return ""
        return (
            (f"(?:^|{_class(_ASCII - before)})" if before else "")
            + loose
            + (f"(?:{_class(_ASCII - after)}|$)" if after else "")
        )

    def _item(self, items: Sequence[Any], place: int, *, first: bool, last: bool) -> str:
        kind, operand = items[place]
        if kind is _op.LITERAL:
            return re.escape(chr(operand))
        if kind in (_op.NOT_LITERAL, _op.IN, _op.ANY):
            return _class(*_members(kind, operand))
        if kind is _op.BRANCH:
            ways = [self.sequence(way, first=first, last=last) for way in operand[1]]
            return "" if last and not all(ways) else f"(?:{'|'.join(dict.fromkeys(ways))})"
        if kind is _op.SUBPATTERN:
            _, added, _, inner = operand
            _check_flags(added)
            loose = self.sequence(inner, first=first, last=last)
            return loose and f"(?{'i' if added & re.IGNORECASE else ''}:{loose})"
        if kind is _op.ATOMIC_GROUP:
            loose = self.sequence(operand, first=first, last=last)
            return loose and f"(?:{loose})"
        if kind in (_op.MAX_REPEAT, _op.MIN_REPEAT, _op.POSSESSIVE_REPEAT):
            return self._repeated(*operand, first=first, last=last)
        if kind is _op.GROUPREF:
            return f"(?:{self.sequence(self._groups[operand], first=False, last=False)})"
        if kind is _op.AT and operand is _op.AT_BOUNDARY and _beside_ascii_word(items, place):
            return r"\b"
        if kind in (_op.AT, _op.ASSERT, _op.ASSERT_NOT):
            return ""
        raise ValueError(f"no relaxed form of {kind}")

    def _repeated(self, least: int, most: Any, inner: Any, *, first: bool, last: bool) -> str:
        if last and least <= 1:  # one repetition is enough for a match
            loose = self.sequence(inner, first=first, last=True) if least else ""
            return loose and f"(?:{loose})"
        loose = self.sequence(inner, first=False, last=False)
        fewest = min(least, _LONGEST)
        if not loose or (first and not least):
            return ""
        if first or last or least == most == fewest:
            return f"(?:{loose}){{{fewest}}}"
        return f"(?:{loose}){{{fewest},{most if most <= _EXACT else ''}}}"


def _check_flags(flags: int) -> None:
    if flags & ~re.IGNORECASE:
        raise ValueError(f"no relaxed form of {re.RegexFlag(flags)}")


def _excluded(assertion: Any, *, ahead: bool) -> set[int]:
    """Return the ASCII characters that an assertion excludes beside the match, except the line end (also an end)."""
    kind, (direction, inner) = assertion
    if kind is not _op.ASSERT_NOT or (direction > 0) is not ahead:
        return set()
    return set(_single_characters(inner)) - {ord("\n")}


def _single_characters(inner: Sequence[Any]) -> frozenset[int]:
    """Return the ASCII characters that a pattern, or one of its branches, matches as a single character."""
    if len(inner) != 1:
        return frozenset()
    kind, operand = inner[0]
    if kind is _op.BRANCH:
        return frozenset().union(*map(_single_characters, operand[1]))
    if kind is _op.SUBPATTERN:
        return _single_characters(operand[3])
    if kind is _op.LITERAL:
        return frozenset({operand}) & _ASCII
    return _members(kind, operand)[0] if kind is _op.IN else frozenset()


def _members(kind: Any, operand: Any) -> tuple[frozenset[int], bool, list[tuple[int, int]]]:
    """Return the ASCII characters of a class, True if it has others, and the ranges of those that it names."""
    if kind is _op.ANY:
        return _ASCII - {ord("\n")}, True, []
    if kind is _op.NOT_LITERAL:
        return _ASCII - {operand}, True, []
    negated = others = False
    ascii_ones: set[int] = set()
    ranges: list[tuple[int, int]] = []
    for member, value in operand:
        if member is _op.NEGATE:
            negated = True
        elif member is _op.CATEGORY:
            category = _CATEGORIES[value]
            ascii_ones.update(code for code in _ASCII if re.match(category, chr(code)))
            others = others or category != r"\d"
        else:
            low, high = (value, value) if member is _op.LITERAL else value
            ascii_ones.update(range(low, min(high, 127) + 1))
            if high > 127:
                ranges.append((max(low, 128), high))
    return (_ASCII - ascii_ones, True, []) if negated else (frozenset(ascii_ones), others, ranges)


def _class(ascii_ones: frozenset[int], others: bool = True, ranges: Iterable[tuple[int, int]] = ()) -> str:
    """Write a class for RE2."""
    members = "".join(rf"\x{code:02x}" for code in sorted(ascii_ones))
    named = "".join(rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in ranges)
    return f"[{members}{_OTHERS if others else named}]"


def _beside_ascii_word(items: Sequence[Any], place: int) -> bool:
    """Return True if a word boundary is one for ASCII too: an ASCII letter or digit is beside it."""
    near = [items[at] for at in (place - 1, place + 1) if 0 <= at < len(items)]
    return any(kind is _op.LITERAL and operand < 128 and chr(operand).isalnum() for kind, operand in near)


_FOLLOWING = bytes(range(0x80, 0xC0))
"""Continuation bytes of UTF-8."""


def matches(pattern: str, text: str) -> bool:
    """Return True if an RE2 pattern matches somewhere in a text."""
    return _compiled(pattern).search(encode(text)) is not None


def find_spans(pattern: str, text: str) -> list[tuple[int, int]]:
    """Return the matches of an RE2 pattern that treats all non-ASCII characters alike, in order."""
    return [match.span() for match in _compiled(pattern).finditer(text.encode("ascii", "replace"))]


def find_encoded_spans(pattern: str, coded: bytes) -> list[tuple[int, int]]:
    """Return the matches of an RE2 pattern in a text from `encode`, as positions of characters."""
    places = [match.span() for match in _compiled(pattern).finditer(coded)]
    if coded.isascii():
        return places
    return [(count_characters(coded[:start]), count_characters(coded[:end])) for start, end in places]


def compile_set(patterns: Iterable[str]) -> Any:
    """Compile RE2 patterns to one automaton: its `Match(encoded text)` returns the indices of those that match."""
    automaton = re2.Set.SearchSet()
    for pattern in patterns:
        automaton.Add(pattern)
    automaton.Compile()
    return automaton


def encode(text: str) -> bytes:
    """Encode any text as UTF-8; it may contain lone surrogates from a decoded escape."""
    return text.encode("utf-8", "surrogatepass")


def count_characters(coded: bytes) -> int:
    """Return the number of characters in UTF-8."""
    return len(coded.translate(None, _FOLLOWING))


@lru_cache
def _compiled(pattern: str) -> Any:
    return re2.compile(pattern)
