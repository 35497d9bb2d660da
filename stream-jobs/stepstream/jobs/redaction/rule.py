"""What a rule is, and what it finds."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from stepstream.jobs.redaction.re2_patterns import longest, relaxed


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


Finder = Callable[[str, int, int], Iterator[tuple[int, int]]]
"""Start and end of each value in a window of a text; it may find others outside."""
Telling = Literal["form", "words", "digits"]
"""What a kind of value is told by."""


@dataclass(frozen=True)
class Rule:
    """One kind of value.

    `find` must take time linear in the text: bounded repetitions, no nested ones.
    """

    name: str
    rank: int
    find: Finder
    hint: str = ""
    """Pattern of RE2 (as `relaxed` makes them) that matches in all texts in which `find` finds something; empty: none
    is known, and the rule looks at every text."""
    reach: int | None = None
    """Characters of the longest match: so far around its hint it looks. None: at the whole text."""
    told_by: Telling = "form"
    """Hints of one of these are looked for together."""
    quotes: bool = False
    """Whether it reads quotation marks: it looks at a text with its escapes as well as without them."""
    alone: bool = False
    """Whether it may ask where a text begins and ends: it looks at no texts joined."""


Check = Callable[[str, int, int], bool]
"""Whether a match is a value, given text and span."""


def by_pattern(pattern: str, check: Check | None = None, flags: int = 0) -> Finder:
    """A rule's `find`: each match of a pattern (or its group `value`) that the check passes."""
    compiled = re.compile(pattern, flags)
    group = "value" if "value" in compiled.groupindex else 0

    def find(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        for match in compiled.finditer(text, low, high):
            start, end = match.span(group)
            if check is None or check(text, start, end):
                yield start, end

    return find


def pattern_rule(name: str, rank: int, pattern: str, check: Check | None = None, told_by: Telling = "form") -> Rule:
    """A rule for all matches of a pattern (or its group `value`) that the check passes."""
    return Rule(name, rank, by_pattern(pattern, check), relaxed(pattern), longest(pattern), told_by)


def context_before(text: str, start: int, words: "re.Pattern[str]", reach: int = 40) -> bool:
    """Whether one of the words stands shortly before a place."""
    return words.search(text, max(0, start - reach), start) is not None
