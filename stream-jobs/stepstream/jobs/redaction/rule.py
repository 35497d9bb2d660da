"""What a rule is, and what it finds."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Find(NamedTuple):
    """A value to replace: `text[start:end]`."""

    start: int
    end: int
    rule: str
    value: str
    """As its rule understood it: decoded, without quotes."""
    rank: int
    """Of overlapping finds the lower rank counts, then the longer."""
    level: int
    """Layer of the view in which it was found."""
    stand_in: str | None = None
    """What to put there instead of a pseudonym: a container, encoded again after its content was redacted."""
    inner: Mapping[str, int] = {}
    """What was found in the container, by rule."""


class Gate(NamedTuple):
    """Quick to search for, and near every match of the rules behind it: they look only around where it is."""

    pattern: "re.Pattern[str]"
    before: int
    after: int
    skip: "re.Pattern[str] | None" = None
    """Matches that this one matches as a whole open nothing."""
    confirm: "re.Pattern[str] | None" = None
    """Matches in every window that is worth a look."""

    def windows(self, text: str, spans: "list[tuple[int, int]]") -> list[tuple[int, int]]:
        """Where to look, in order, without overlaps; `spans` are the matches of the pattern."""
        windows: list[tuple[int, int]] = []
        size = len(text)
        for start, end in spans:
            if self.skip is not None and self.skip.fullmatch(text, start, end):
                continue
            low, high = max(0, start - self.before), min(size, end + self.after)
            if windows and low <= windows[-1][1]:
                low = windows.pop()[0]
            windows.append((low, high))
        if self.confirm is None:
            return windows
        return [window for window in windows if self.confirm.search(text, *window)]


Finder = Callable[[str, int, int], Iterator[tuple[int, int]]]
"""Start and end of each value that begins in a window of a text."""


@dataclass(frozen=True)
class Rule:
    """One kind of value. Most texts have none of a rule's marks, and looking for those costs next to nothing.

    `find` must take time linear in the text: bounded repetitions, no nested ones.
    """

    name: str
    rank: int
    find: Finder
    marks: tuple[str, ...] = ()
    """Lower-case literals, at least one of which is in the lower-cased text of every match; none: the gate decides."""
    gate: Gate | None = None
    quotes: bool = False
    """Whether it reads quotation marks: it looks at a text with its escapes as well as without them."""


# A run of characters as keys and tokens have them, and base64.
LONG = Gate(
    re.compile(r"[A-Za-z0-9+/_-]{14,}+={0,2}"),
    before=40,
    after=48,
    skip=re.compile(
        r"/?[a-z]{1,20}(?:[_/-][a-z]{1,20})*|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
    ),  # words, paths, UUIDs
)
# Capital letters, then digits, as ids and accounts begin.
LETTERED = Gate(re.compile(r"[A-Z]{2}[ -]?\d\d[ -]?[A-Z\d]{2}"), before=8, after=40)
# A number of eight digits or more with separators between, unless it is the day and hour of a time stamp.
NUMBER = Gate(
    re.compile(r"\d(?:[ ().\-/+]{0,3}+\d){6,}"),
    before=64,
    after=12,
    skip=re.compile(r"(?:19|20)\d\d[-/]\d\d[-/]\d\d(?: \d\d)?"),
)


def by_pattern(pattern: str, check: Callable[[str, int, int], bool] | None = None, flags: int = 0) -> Finder:
    """A rule's `find`: each match of a pattern (or its group `value`) that the check, given text and span, passes."""
    compiled = re.compile(pattern, flags)
    group = "value" if "value" in compiled.groupindex else 0

    def find(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        for match in compiled.finditer(text, low, high):
            start, end = match.span(group)
            if check is None or check(text, start, end):
                yield start, end

    return find


def context_before(text: str, start: int, words: "re.Pattern[str]", reach: int = 40) -> bool:
    """Whether one of the words stands shortly before a place."""
    return words.search(text, max(0, start - reach), start) is not None
