"""Replaces what must not be kept: the rules, run over a text and over what its encodings hide."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, islice

from stepstream.jobs.redaction.catalogue import ID_RULES, inline_rules
from stepstream.jobs.redaction.containers import containers
from stepstream.jobs.redaction.detectors import tier_rules
from stepstream.jobs.redaction.options import RedactionOptions
from stepstream.jobs.redaction.prefilter import PrefilteredRules
from stepstream.jobs.redaction.pseudonyms import PSEUDONYM, pseudonym
from stepstream.jobs.redaction.rule import Find, Rule, by_pattern
from stepstream.jobs.redaction.views import MAX_LAYERS, View, plain, undone_text, views_of

_MAX_DEPTH = 3
"""Containers inside containers."""
_MAX_PASSES = 8
_SHORTEST = 3
"""Characters; nothing to find is that short."""
_BETWEEN = "\n" + "\x00" * 8 + "\n"
"""Between texts that are looked at as one: no rule's context and no container reaches over it."""
_CUSTOM_RANK, _CONTAINER_RANK = 1, 30
_WORDS, _LONGEST_WORD = 20_000, 256
"""Short texts, and tuples of ids, of which what they become is remembered; and characters of the longest text."""


class Redactor:
    """Replaces values by pseudonyms. Safe to share between threads."""

    def __init__(
        self, key: bytes, options: RedactionOptions | None = None, *, only: frozenset[str] | None = None
    ) -> None:
        """Makes a redactor.

        Args:
            key: makes pseudonyms (see `tenant_key`); whoever has it can check a guess.
            options: what is looked for.
            only: names of the inline rules to use; None: all that the options ask for.

        Raises:
            RedactionError: a tier's package is missing.
        """
        options = options or RedactionOptions()
        self._key = key
        self._rules, self._quoted = _rules_of(options, only)
        self._of_ids = Redactor(key, options, only=ID_RULES) if only is None else self
        self._clean: set[tuple[str | None, ...]] = set()
        self._words: dict[str, tuple[str, Counter[str]]] = {}
        self._allow = tuple(re.compile(pattern) for pattern in options.allow)

    def redact(self, text: str, found: "Counter[str]") -> str:
        """The text with every value replaced as `<EMAIL:3f9a…>`; counts them by rule into `found`.

        Redacting twice changes nothing more. The same object comes back where nothing was found.
        """
        return self._redact(text, found, 0) if len(text) > _SHORTEST else text

    def suspects(self, texts: Sequence[str]) -> set[int]:
        """Which of the texts `redact` may change; it changes no other. One look at many is faster than one at each."""
        layer = [(place, plain(text)) for place, text in enumerate(texts) if len(text) > _SHORTEST]
        whole: list[tuple[int, str]] = []
        quoted: list[tuple[int, str]] = []
        for _ in range(MAX_LAYERS):
            deeper: list[tuple[int, str]] = []
            for place, text in layer:
                under = undone_text(text)
                if under is None or under[1]:
                    whole.append((place, text))
                else:
                    quoted.append((place, text))
                if under is not None:
                    deeper.append((place, under[0]))
            layer = deeper
        return self._suspects([*whole, *layer], self._rules) | self._suspects(quoted, self._quoted)

    def _suspects(self, texts: Sequence[tuple[int, str]], rules: PrefilteredRules) -> set[int]:
        if not texts:
            return set()
        suspects = {place for place, text in texts if rules.alone_find(text)} if rules.alone else set()
        joined = _BETWEEN.join([text for _, text in texts])
        found = [(start, end) for start, end, _ in rules.find(joined, joined=True)]
        if rules is self._rules:
            pieces = list(containers(joined))
            inside = self.suspects([piece.content for piece in pieces]) if pieces else ()
            found += [(pieces[place].start, pieces[place].end) for place in inside]
        if found:
            ends = list(accumulate(len(text) + len(_BETWEEN) for _, text in texts))
            # A find that reaches over an end, and so is none, may hide one in the text that it reaches into.
            suspects.update(
                texts[k][0]
                for start, end in found
                for k in range(bisect_right(ends, start), min(bisect_right(ends, end - 1) + 1, len(texts)))
            )
        return suspects

    def redact_id(self, text: str, found: "Counter[str]") -> str:
        """An id without what is known by its form (`ID_RULES`): the others would take ids for secrets."""
        return self._of_ids.redact_word(text, found)

    def redact_ids(self, texts: tuple[str | None, ...], found: "Counter[str]") -> tuple[str | None, ...]:
        """As `redact_id`, for ids that come together again and again; the same tuple where nothing was found."""
        if texts in self._clean:
            return texts
        redacted = tuple([text and self.redact_id(text, found) for text in texts])
        if redacted != texts:
            return redacted
        if len(self._clean) >= _WORDS:
            self._clean.clear()
        self._clean.add(texts)
        return texts

    def redact_word(self, text: str, found: "Counter[str]") -> str:
        """As `redact`, for a short text that comes again and again: it is looked at once."""
        known = self._words.get(text)
        if known is None:
            counts: Counter[str] = Counter()
            known = self.redact(text, counts), counts
            if len(text) <= _LONGEST_WORD:
                if len(self._words) >= _WORDS:
                    self._words.clear()
                self._words[text] = known
        redacted, counts = known
        if counts:
            found.update(counts)
        return redacted

    def pseudonym(self, rule: str, value: str) -> str:
        """The stand-in of a value."""
        return pseudonym(self._key, rule, value)

    def _redact(self, text: str, found: "Counter[str]", depth: int) -> str:
        # A replacement changes what its neighbours look like: look again until nothing is found.
        for _ in range(_MAX_PASSES):
            finds = self._finds(text, depth)
            if not finds:
                break
            pieces, done = [], 0
            for find in finds:
                pieces.append(text[done : find.start])
                if find.stand_in is None:
                    found[find.rule] += 1
                    pieces.append(self.pseudonym(find.rule, find.value))
                else:
                    found.update(find.inner)
                    pieces.append(find.stand_in)
                done = find.end
            pieces.append(text[done:])
            text = "".join(pieces)
        return text

    def _finds(self, text: str, depth: int) -> list[Find]:
        """What to replace, in order, without overlaps."""
        views = views_of(text)
        shields = [match.span() for match in PSEUDONYM.finditer(text)] if "<" in text else []
        finds: list[Find] = []
        for level, view in enumerate(views):
            whole = level + 1 == len(views) or views[level + 1].form
            for start, end, rule in (self._rules if whole else self._quoted).find(view.text):
                value = view.text[start:end]
                if not any(pattern.fullmatch(value) for pattern in self._allow):
                    finds.append(Find(*view.span(start, end), rule.name, value, rule.rank, level))
            if whole and depth < _MAX_DEPTH:
                finds.extend(self._contained(view, level, depth))
        if not finds:
            return finds
        return _chosen([fitted for find in finds if (fitted := _fitted(find, text, views, shields)) is not None])

    def _contained(self, view: View, level: int, depth: int) -> Iterator[Find]:
        """Containers in one view whose content has something to replace."""
        for piece in containers(view.text):
            inner: Counter[str] = Counter()
            redacted = self._redact(piece.content, inner, depth + 1)
            if inner:
                start, end = view.span(piece.start, piece.end)
                yield Find(start, end, "", "", _CONTAINER_RANK, level, piece.wrap(redacted), inner)


@lru_cache(maxsize=64)
def _rules_of(options: RedactionOptions, only: frozenset[str] | None) -> tuple[PrefilteredRules, PrefilteredRules]:
    """The rules for tenants with these options, and those of them that read quotation marks."""
    rules = inline_rules(options) if "inline" in options.tiers else ()
    if only is not None:
        rules = tuple(rule for rule in rules if rule.name in only)
    else:
        custom = [
            Rule(name, _CUSTOM_RANK, by_pattern(pattern), quotes=True, alone=True) for name, pattern in options.custom
        ]
        rules = (*rules, *custom, *tier_rules(options.tiers))
    return PrefilteredRules(rules), PrefilteredRules([rule for rule in rules if rule.quotes])


def _fitted(find: Find, text: str, views: list[View], shields: list[tuple[int, int]]) -> Find | None:
    """The find without halves of escapes or of pseudonyms; null where nothing is left to replace."""
    start, end = find.start, find.end
    for deeper in views[find.level + 1 :]:
        start, end = deeper.snapped(start, end)
    rest = ""
    if shields:
        k = max(0, bisect_right(shields, (start, 0)) - 1)
        done = start
        for low, high in islice(shields, k, None):
            if low >= end:
                break
            if low < start < high:
                start = done = high
            elif start <= low and high <= end:
                rest += text[done:low]
                done = high
            elif low < end < high:
                end = low
        rest += text[done:end]
    else:
        rest = text[start:end]
    if start >= end or not any(map(str.isalnum, rest)):
        return None
    if (start, end) == (find.start, find.end):
        return find
    return None if find.stand_in is not None else find._replace(start=start, end=end, value=text[start:end])


def _chosen(finds: list[Find]) -> list[Find]:
    """Of overlapping finds the one of lowest rank, then the longest, then that of the deepest view."""
    chosen: list[Find] = []
    starts: list[int] = []
    for find in sorted(finds, key=lambda f: (f.rank, f.start - f.end, -f.level, f.start)):
        place = bisect_left(starts, find.start)
        free = place == len(starts) or starts[place] >= find.end
        if free and (place == 0 or chosen[place - 1].end <= find.start):
            starts.insert(place, find.start)
            chosen.insert(place, find)
    return chosen
