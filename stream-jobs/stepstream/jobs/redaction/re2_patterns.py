"""A pattern of Python's `re` as one of RE2 that matches in every text in which it does, and in few others.

RE2 has no look around and no back references, and long repetitions are what makes its automata large. So all that
only narrows a match is dropped or loosened: what is looked for ahead, how often something repeats at most, that a
group says again what it said. What one character before or after must not be stays: without it, each digit of a long
number could be the first of a short one. Patterns are read by the parser of `re` itself.

Only ASCII is told exactly: a class holds all other characters where it may hold any. Digits of other scripts, and
letters that fold to ASCII ones, are not in the classes of ASCII ones: texts that have them are `FOREIGN`.

RE2's automata: in time linear in a text, whether and where patterns match, many of them in one pass.
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
"""So often a repetition is demanded at most."""
_EXACT = 4
"""Repetitions of up to so many have an upper bound; others go on for ever, which needs no counting."""
_FAR = 400
"""Characters; of what may be longer, nothing is gained by looking only around a hint."""
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
"""RE2: a digit of another script, which `\\d` means too, or a letter that is an ASCII one where case is ignored."""


def relaxed(pattern: str, flags: int = 0) -> str:
    """The pattern for RE2; empty where that would match everywhere.

    Raises:
        ValueError: it has a flag that is not IGNORECASE, or something else that is not known here.
    """
    parsed = _parser.parse(pattern, flags)
    _check_flags(parsed.state.flags & ~re.UNICODE)
    loose = _Relaxing().sequence(parsed, first=True, last=True)
    return f"(?i:{loose})" if loose and parsed.state.flags & re.IGNORECASE else loose


def longest(pattern: str, flags: int = 0) -> int | None:
    """Characters of the longest match of a pattern; None where that is far."""
    most: int = _parser.parse(pattern, flags).getwidth()[1]
    return most if most <= _FAR else None


class _Relaxing:
    """Walks one parsed pattern. `first` and `last`: whether nothing else of the pattern is before, or after."""

    def __init__(self) -> None:
        self._groups: dict[int, Any] = {}

    def sequence(self, items: Iterable[Any], *, first: bool, last: bool) -> str:
        """Items in a row, with what may not be around them."""
        items = list(items)
        before, after = set[int](), set[int]()
        while first and items and items[0][0] in (_op.ASSERT, _op.ASSERT_NOT):
            before |= _refused(items.pop(0), ahead=False)
        while last and items and items[-1][0] in (_op.ASSERT, _op.ASSERT_NOT):
            kind, (direction, inner) = items[-1]
            if kind is _op.ASSERT and direction > 0 and not after:
                items[-1:] = inner  # what must follow does follow
            else:
                after |= _refused(items.pop(), ahead=True)
        self._groups.update({what[0]: what[3] for kind, what in items if kind is _op.SUBPATTERN})
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
        kind, what = items[place]
        if kind is _op.LITERAL:
            return re.escape(chr(what))
        if kind in (_op.NOT_LITERAL, _op.IN, _op.ANY):
            return _class(*_members(kind, what))
        if kind is _op.BRANCH:
            ways = [self.sequence(way, first=first, last=last) for way in what[1]]
            return "" if last and not all(ways) else f"(?:{'|'.join(dict.fromkeys(ways))})"
        if kind is _op.SUBPATTERN:
            _, added, _, inner = what
            _check_flags(added)
            loose = self.sequence(inner, first=first, last=last)
            return loose and f"(?{'i' if added & re.IGNORECASE else ''}:{loose})"
        if kind is _op.ATOMIC_GROUP:
            loose = self.sequence(what, first=first, last=last)
            return loose and f"(?:{loose})"
        if kind in (_op.MAX_REPEAT, _op.MIN_REPEAT, _op.POSSESSIVE_REPEAT):
            return self._repeated(*what, first=first, last=last)
        if kind is _op.GROUPREF:
            return f"(?:{self.sequence(self._groups[what], first=False, last=False)})"
        if kind is _op.AT and what is _op.AT_BOUNDARY and _beside_ascii_word(items, place):
            return r"\b"
        if kind in (_op.AT, _op.ASSERT, _op.ASSERT_NOT):
            return ""
        raise ValueError(f"no relaxed form of {kind}")

    def _repeated(self, least: int, most: Any, inner: Any, *, first: bool, last: bool) -> str:
        if last and least <= 1:  # that one is there says all that can be said
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


def _refused(assertion: Any, *, ahead: bool) -> set[int]:
    """ASCII characters that an assertion lets not stand beside the match; never a line end, which ends a text too."""
    kind, (direction, inner) = assertion
    if kind is not _op.ASSERT_NOT or (direction > 0) is not ahead:
        return set()
    return set(_alone(inner)) - {ord("\n")}


def _alone(inner: Sequence[Any]) -> frozenset[int]:
    """ASCII characters each of which is all that a pattern, or one of its branches, asks for."""
    if len(inner) != 1:
        return frozenset()
    kind, what = inner[0]
    if kind is _op.BRANCH:
        return frozenset().union(*map(_alone, what[1]))
    if kind is _op.SUBPATTERN:
        return _alone(what[3])
    if kind is _op.LITERAL:
        return frozenset({what}) & _ASCII
    return _members(kind, what)[0] if kind is _op.IN else frozenset()


def _members(kind: Any, what: Any) -> tuple[frozenset[int], bool, list[tuple[int, int]]]:
    """A class: its ASCII characters, whether it may have any others, and ranges of those that it names."""
    if kind is _op.ANY:
        return _ASCII - {ord("\n")}, True, []
    if kind is _op.NOT_LITERAL:
        return _ASCII - {what}, True, []
    negated = others = False
    ascii_ones: set[int] = set()
    ranges: list[tuple[int, int]] = []
    for member, value in what:
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
    """A class as RE2 reads it."""
    members = "".join(rf"\x{code:02x}" for code in sorted(ascii_ones))
    named = "".join(rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in ranges)
    return f"[{members}{_OTHERS if others else named}]"


def _beside_ascii_word(items: Sequence[Any], place: int) -> bool:
    """Whether a word's end is one for ASCII too: where a letter or digit of ASCII is beside it."""
    near = [items[at] for at in (place - 1, place + 1) if 0 <= at < len(items)]
    return any(kind is _op.LITERAL and what < 128 and chr(what).isalnum() for kind, what in near)


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
