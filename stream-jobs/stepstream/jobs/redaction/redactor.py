"""Replaces what must not be kept: the rules, run over a text and over what its encodings hide."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

from stepstream.jobs.redaction.catalogue import ID_RULES, inline_rules
from stepstream.jobs.redaction.containers import containers
from stepstream.jobs.redaction.options import RedactionOptions
from stepstream.jobs.redaction.presence import Literals, Patterns, encoded, spans
from stepstream.jobs.redaction.pseudonyms import PSEUDONYM, pseudonym
from stepstream.jobs.redaction.rule import LONG, Find, Gate, Rule, by_pattern
from stepstream.jobs.redaction.tiers import tier_rules
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
        rules = inline_rules(options) if "inline" in options.tiers else ()
        custom = [Rule(name, _CUSTOM_RANK, by_pattern(pattern), quotes=True) for name, pattern in options.custom]
        every = (*rules, *custom, *tier_rules(options.tiers))
        self._rules = every if only is None else tuple(rule for rule in rules if rule.name in only)
        self._of_ids = Redactor(key, options, only=ID_RULES) if only is None else self
        self._clean: set[tuple[str | None, ...]] = set()
        self._words: dict[str, tuple[str, Counter[str]]] = {}
        by_gate: dict[Gate, list[Rule]] = {}
        for rule in self._rules:
            if rule.gate is not None:
                by_gate.setdefault(rule.gate, []).append(rule)
        self._ungated = _Behind([rule for rule in self._rules if rule.gate is None])
        self._quoted = [rule for rule in self._rules if rule.quotes]
        self._gated = [(gate, _Behind(rules)) for gate, rules in by_gate.items()]
        self._marks = Literals(mark for rule in self._rules for mark in rule.marks)
        self._gates = Patterns([gate.pattern for gate in by_gate])
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
        return self._suspects([*whole, *layer], whole=True) | self._suspects(quoted, whole=False)

    def _suspects(self, texts: Sequence[tuple[int, str]], *, whole: bool) -> set[int]:
        if not texts:
            return set()
        joined = _BETWEEN.join([text for _, text in texts])
        runs = spans(LONG.pattern, joined) if whole else []
        scan = self._scan(joined, runs) if whole else self._scan_quoted(joined)
        found = [(start, end) for start, end, _ in scan]
        found += [(piece.start, piece.end) for piece in containers(joined, runs)]
        if not found:
            return set()
        ends = list(accumulate(len(text) + len(_BETWEEN) for _, text in texts))
        # A find that reaches over an end, and so is none, may hide one in the text that it reaches into.
        return {
            texts[k][0]
            for start, end in found
            for k in range(bisect_right(ends, start), min(bisect_right(ends, end - 1) + 1, len(texts)))
        }

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
            runs = spans(LONG.pattern, view.text) if whole else []
            for start, end, rule in self._scan(view.text, runs) if whole else self._scan_quoted(view.text):
                value = view.text[start:end]
                if not any(pattern.fullmatch(value) for pattern in self._allow):
                    finds.append(Find(*view.span(start, end), rule.name, value, rule.rank, level))
            if depth < _MAX_DEPTH:
                finds.extend(self._contained(view, runs, level, depth))
        if not finds:
            return finds
        return _chosen([fitted for find in finds if (fitted := _fitted(find, text, views, shields)) is not None])

    def _scan(self, text: str, runs: list[tuple[int, int]]) -> Iterator[tuple[int, int, Rule]]:
        """What the rules find in one view, overlaps included."""
        lowered = text.lower()
        present = self._marks.of(encoded(lowered))
        for rule in self._ungated.candidates(present):
            for start, end in rule.find(text, 0, len(text)):
                yield start, end, rule
        found = {LONG.pattern: runs}
        for index in self._gates.of(encoded(text)):
            gate, behind = self._gated[index]
            rules = behind.candidates(present)
            if not rules:
                continue
            if gate.pattern not in found:
                found[gate.pattern] = spans(gate.pattern, text)
            windows = gate.windows(text, found[gate.pattern])
            near = "\n".join([lowered[low:high] for low, high in windows])
            for rule in rules if windows else ():
                if not rule.marks or _one_in(rule.marks, near):
                    for low, high in windows:
                        for start, end in rule.find(text, low, high):
                            yield start, end, rule

    def _scan_quoted(self, text: str) -> Iterator[tuple[int, int, Rule]]:
        """What the rules that read quotation marks find in a view that has a deeper one."""
        lowered = text.lower()
        for rule in self._quoted:
            if not rule.marks or _one_in(rule.marks, lowered):
                for start, end in rule.find(text, 0, len(text)):
                    yield start, end, rule

    def _contained(self, view: View, runs: list[tuple[int, int]], level: int, depth: int) -> Iterator[Find]:
        """Containers in one view whose content has something to replace."""
        for piece in containers(view.text, runs):
            inner: Counter[str] = Counter()
            redacted = self._redact(piece.content, inner, depth + 1)
            if inner:
                start, end = view.span(piece.start, piece.end)
                yield Find(start, end, "", "", _CONTAINER_RANK, level, piece.wrap(redacted), inner)


class _Behind:
    """Some rules, as those behind one gate, and which of them a text with certain marks may match."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._unmarked = [place for place, rule in enumerate(rules) if not rule.marks]
        self._always = [rules[place] for place in self._unmarked]
        self._of_mark: dict[str, list[int]] = {}
        for place, rule in enumerate(rules):
            for mark in rule.marks:
                self._of_mark.setdefault(mark, []).append(place)

    def candidates(self, present: set[str]) -> list[Rule]:
        """Those without marks, and those with one that is present, in their order."""
        marked = [place for mark in present if mark in self._of_mark for place in self._of_mark[mark]]
        if not marked:
            return self._always
        return [self._rules[place] for place in sorted({*marked, *self._unmarked})]


def _one_in(marks: tuple[str, ...], text: str) -> bool:
    for mark in marks:  # noqa: SIM110 - any() over a generator takes three times as long
        if mark in text:
            return True
    return False


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
