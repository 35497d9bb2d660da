"""Which of many rules have to look at a text at all.

Almost every rule finds nothing in almost every text. RE2 runs the hints of many as one automaton, in one pass over the
text; only the rules whose hints it reports look for themselves.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from stepstream.jobs.redaction.re2_patterns import FOREIGN, all_of, encoded, spans_in
from stepstream.jobs.redaction.rule import Rule

_SOUND, _FOREIGN, _FIRST = 0, 1, 2
"""Places in a set: of a pattern that every text has, since RE2 reports nothing where an automaton outgrew its memory;
of `FOREIGN`, which no hint knows; of the first hint."""
_NOTHING = [_SOUND]


class PrefilteredRules:
    """Rules, each of which looks only at texts that have its hint."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self.alone = [rule for rule in rules if rule.alone]
        self._always = [place for place, rule in enumerate(rules) if not rule.hint]
        self._hinted: list[tuple[Any, list[int]]] = []
        for telling in sorted({rule.told_by for rule in rules}):
            places = [place for place, rule in enumerate(rules) if rule.hint and rule.told_by == telling]
            self._hinted.append((all_of(["^", FOREIGN, *(rules[place].hint for place in places)]), places))

    def find(self, text: str, *, joined: bool = False) -> Iterator[tuple[int, int, Rule]]:
        """What they find, overlaps included; `joined`: the text is made of several, which some rules cannot take."""
        coded = encoded(text)
        present, sure = self._present(coded)
        for place in present:
            rule = self._rules[place]
            if joined and rule.alone:
                continue
            for low, high in _windows(rule, coded) if sure and rule.reach else ((0, len(text)),):
                for start, end in rule.find(text, low, high):
                    yield start, end, rule

    def alone_find(self, text: str) -> bool:
        """Whether those find something that look at no texts joined."""
        return any(True for rule in self.alone for _ in rule.find(text, 0, len(text)))

    def _present(self, coded: bytes) -> tuple[list[int], bool]:
        """Places of the rules whose hints a text has, in order, and whether they tell all; else any may find some."""
        present = list(self._always)
        sure = True
        for hints, places in self._hinted:
            matched: list[int] = hints.Match(coded) or []
            if matched == _NOTHING:
                continue
            if _SOUND not in matched or _FOREIGN in matched:
                present += places
                sure = False
            else:
                present += [places[place - _FIRST] for place in matched if place != _SOUND]
        return sorted(present), sure


def _windows(rule: Rule, coded: bytes) -> list[tuple[int, int]]:
    """Where a rule's values may be, if its hint matches at each; without overlaps."""
    windows: list[tuple[int, int]] = []
    reach = rule.reach or 0
    for start, end in spans_in(rule.hint, coded):
        # From the value's own beginning to beyond its end, with what may not follow it.
        low, high = max(0, start - reach - 1), end + 2 * reach
        if windows and low <= windows[-1][1]:
            low = windows.pop()[0]
        windows.append((low, high))
    return windows
