"""Select the rules that must search a text.

Almost every rule finds nothing in almost every text. RE2 runs the hints of many rules as one automaton, in one pass
over the text. Only the rules whose hints match search it themselves.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from stepstream.jobs.redaction.re2_patterns import FOREIGN, compile_set, encode, find_encoded_spans
from stepstream.jobs.redaction.rule import Rule

_SOUND, _FOREIGN, _FIRST = 0, 1, 2
"""Positions in a set: of a pattern that matches every text (RE2 reports nothing if the automaton exceeds its memory);
of `FOREIGN`, which hints do not cover; of the first hint."""
_NO_HINT = [_SOUND]


class PrefilteredRules:
    """Rules, each of which searches only the texts that its hint matches."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self.whole_text_only = [rule for rule in rules if rule.whole_text_only]
        self._always = [place for place, rule in enumerate(rules) if not rule.hint]
        self._hinted: list[tuple[Any, list[int]]] = []
        for kind in sorted({rule.kind for rule in rules}):
            places = [place for place, rule in enumerate(rules) if rule.hint and rule.kind == kind]
            self._hinted.append((compile_set(["^", FOREIGN, *(rules[place].hint for place in places)]), places))

    def find(self, text: str, *, joined: bool = False) -> Iterator[tuple[int, int, Rule]]:
        """Yield start, end and rule of each find, overlaps included. `joined`: the text consists of several texts."""
        coded = encode(text)
        present, sure = self._present(coded)
        for place in present:
            rule = self._rules[place]
            if joined and rule.whole_text_only:
                continue
            for low, high in _windows(rule, coded) if sure and rule.reach else ((0, len(text)),):
                for start, end in rule.find(text, low, high):
                    yield start, end, rule

    def finds_in_whole_text(self, text: str) -> bool:
        """Return True if a rule that cannot search joined texts finds a value."""
        return any(True for rule in self.whole_text_only for _ in rule.find(text, 0, len(text)))

    def _present(self, coded: bytes) -> tuple[list[int], bool]:
        """Return the rules whose hints match, by index in order, and True if the hints are reliable for this text."""
        present = list(self._always)
        sure = True
        for hints, places in self._hinted:
            matched: list[int] = hints.Match(coded) or []
            if matched == _NO_HINT:
                continue
            if _SOUND not in matched or _FOREIGN in matched:
                present += places
                sure = False
            else:
                present += [places[place - _FIRST] for place in matched if place != _SOUND]
        return sorted(present), sure


def _windows(rule: Rule, coded: bytes) -> list[tuple[int, int]]:
    """Return the windows that can contain a rule's values, around the matches of its hint, without overlaps."""
    windows: list[tuple[int, int]] = []
    reach = rule.reach or 0
    for start, end in find_encoded_spans(rule.hint, coded):
        # From the begin of the value to after its end, with the characters that lookaheads read.
        low, high = max(0, start - reach - 1), end + 2 * reach
        if windows and low <= windows[-1][1]:
            low = windows.pop()[0]
        windows.append((low, high))
    return windows
