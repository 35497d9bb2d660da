"""Declare redaction rules and their finds."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from stepstream.jobs.redaction.re2_patterns import max_length, relax


class Find(NamedTuple):
    """A value to replace: `text[start:end]`."""

    start: int
    end: int
    rule: str
    value: str
    """The value decoded, without quotes."""
    rank: int
    """Priority: of overlapping finds, the lower rank wins, then the longer find."""
    level: int
    """Index of the view in which it was found; 0: the text itself."""
    replacement: str | None = None
    """Text to insert: a container, encoded again after redaction. None: insert a pseudonym."""
    inner: Mapping[str, int] = {}
    """Number of values redacted in the container, by rule."""


Finder = Callable[[str, int, int], Iterator[tuple[int, int]]]
"""Yields start and end of each value in a window of a text; it may also yield values outside the window."""
HintKind = Literal["form", "words", "digits"]
"""The feature by which a rule recognises its values."""


@dataclass(frozen=True)
class Rule:
    """One kind of value.

    `find` must take time linear in the text: bounded repetitions, no nested ones.
    """

    name: str
    rank: int
    find: Finder
    hint: str = ""
    """RE2 pattern (from `relax`) that matches every text with a value; empty: the rule searches every text."""
    reach: int | None = None
    """Length of the longest match, in characters: the rule searches this far around its hint. None: the whole text."""
    kind: HintKind = "form"
    """Hints of one kind are compiled into one automaton."""
    reads_quotes: bool = False
    """True if the rule reads quotation marks: it searches a text both with its escapes and without them."""
    whole_text_only: bool = False
    """True if the rule may depend on the begin or end of a text: it does not search joined texts."""


Check = Callable[[str, int, int], bool]
"""Returns True if the match at a span of a text is a value."""


def by_pattern(pattern: str, check: Check | None = None, flags: int = 0) -> Finder:
    """Build a rule's `find`: each match of a pattern (or its group `value`) that passes the check."""
    compiled = re.compile(pattern, flags)
    group = "value" if "value" in compiled.groupindex else 0

    def find(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        for match in compiled.finditer(text, low, high):
            start, end = match.span(group)
            if check is None or check(text, start, end):
                yield start, end

    return find


def pattern_rule(name: str, rank: int, pattern: str, check: Check | None = None, kind: HintKind = "form") -> Rule:
    """Build a rule for all matches of a pattern (or its group `value`) that pass the check."""
    return Rule(name, rank, by_pattern(pattern, check), relax(pattern), max_length(pattern), kind)


def has_context_before(text: str, start: int, words: "re.Pattern[str]", reach: int = 40) -> bool:
    """Return True if one of the words occurs in the `reach` characters before `start`."""
    return words.search(text, max(0, start - reach), start) is not None
