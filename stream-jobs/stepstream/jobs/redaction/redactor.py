"""Replace values by pseudonyms: run the rules over a text and over its decoded contents."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, islice

from stepstream.jobs.redaction.catalogue import ID_RULES, inline_rules
from stepstream.jobs.redaction.containers import find_containers
from stepstream.jobs.redaction.detectors import tier_rules
from stepstream.jobs.redaction.options import RedactionOptions
from stepstream.jobs.redaction.prefilter import PrefilteredRules
from stepstream.jobs.redaction.pseudonyms import PSEUDONYM, pseudonym
from stepstream.jobs.redaction.rule import Find, Rule
from stepstream.jobs.redaction.tenant_patterns import by_tenant_pattern, fully_matches, tenant_pattern
from stepstream.jobs.redaction.views import MAX_LAYERS, View, decode_text, plain, views_of

_MAX_DEPTH = 3
"""Deepest nesting of containers."""
_MAX_PASSES = 8
_TOO_SHORT = 3
"""Length, in characters, up to which a text cannot contain a value."""
_BETWEEN = "\n" + "\x00" * 8 + "\n"
"""Separates joined texts: no context of a rule and no container spans it."""
_CUSTOM_RANK, _CONTAINER_RANK = 1, 30
_MAX_CACHED, _LONGEST_CACHED = 20_000, 256
"""Largest number of cached texts and of cached tuples of ids; length of the longest cached text, in characters."""


class Redactor:
    """Replaces values by pseudonyms. Safe to share between threads."""

    def __init__(
        self, key: bytes, options: RedactionOptions | None = None, *, only: frozenset[str] | None = None
    ) -> None:
        """Build a redactor.

        Args:
            key: key of the pseudonyms (see `tenant_key`); its owner can test guesses.
            options: rules to apply; None: the defaults.
            only: names of the inline rules to apply; None: all rules of the options.

        Raises:
            RedactionError: the package of a tier is missing.
            InvalidPattern: RE2 does not accept one of the tenant's patterns.
        """
        options = options or RedactionOptions()
        self._key = key
        self._rules, self._quoted = _rules_of(options, only)
        self._id_redactor = Redactor(key, options, only=ID_RULES) if only is None else self
        self._clean_ids: set[tuple[str | None, ...]] = set()
        self._cache: dict[str, tuple[str, Counter[str]]] = {}
        self._allow = tuple(tenant_pattern(pattern) for pattern in options.allow)

    def redact(self, text: str, found: "Counter[str]") -> str:
        """Return the text with each value replaced as `<EMAIL:3f9a…>`; count the values by rule in `found`.

        Redacting the result again changes nothing. Without a value, the same object is returned.
        """
        return self._redact(text, found, 0) if len(text) > _TOO_SHORT else text

    def suspects(self, texts: Sequence[str]) -> set[int]:
        """Return the indices of the texts that `redact` may change. Searching many texts at once is faster."""
        layer = [(place, plain(text)) for place, text in enumerate(texts) if len(text) > _TOO_SHORT]
        whole: list[tuple[int, str]] = []
        quoted: list[tuple[int, str]] = []
        for _ in range(MAX_LAYERS):
            deeper: list[tuple[int, str]] = []
            for place, text in layer:
                under = decode_text(text)
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
        suspects: set[int] = set()
        if rules.whole_text_only:
            suspects = {place for place, text in texts if rules.finds_in_whole_text(text)}
        joined = _BETWEEN.join([text for _, text in texts])
        found = [(start, end) for start, end, _ in rules.find(joined, joined=True)]
        if rules is self._rules:
            pieces = list(find_containers(joined))
            inside = self.suspects([piece.content for piece in pieces]) if pieces else ()
            found += [(pieces[place].start, pieces[place].end) for place in inside]
        if found:
            ends = list(accumulate(len(text) + len(_BETWEEN) for _, text in texts))
            # A find that spans two texts is no value, but may hide one in either.
            suspects.update(
                texts[k][0]
                for start, end in found
                for k in range(bisect_right(ends, start), min(bisect_right(ends, end - 1) + 1, len(texts)))
            )
        return suspects

    def redact_id(self, text: str, found: "Counter[str]") -> str:
        """Redact an id with `ID_RULES`: other rules match ids as secrets."""
        return self._id_redactor.redact_word(text, found)

    def redact_ids(self, texts: tuple[str | None, ...], found: "Counter[str]") -> tuple[str | None, ...]:
        """Redact a tuple of ids that recurs; return the same tuple if nothing is found."""
        if texts in self._clean_ids:
            return texts
        redacted = tuple([text and self.redact_id(text, found) for text in texts])
        if redacted != texts:
            return redacted
        if len(self._clean_ids) >= _MAX_CACHED:
            self._clean_ids.clear()
        self._clean_ids.add(texts)
        return texts

    def redact_word(self, text: str, found: "Counter[str]") -> str:
        """As `redact`, with a cache for short texts that recur."""
        known = self._cache.get(text)
        if known is None:
            counts: Counter[str] = Counter()
            known = self.redact(text, counts), counts
            if len(text) <= _LONGEST_CACHED:
                if len(self._cache) >= _MAX_CACHED:
                    self._cache.clear()
                self._cache[text] = known
        redacted, counts = known
        if counts:
            found.update(counts)
        return redacted

    def pseudonym(self, rule: str, value: str) -> str:
        """Return the pseudonym of a value."""
        return pseudonym(self._key, rule, value)

    def _redact(self, text: str, found: "Counter[str]", depth: int) -> str:
        # A replacement changes the context of other values: search again until nothing is found.
        for _ in range(_MAX_PASSES):
            finds = self._finds(text, depth)
            if not finds:
                break
            pieces, done = [], 0
            for find in finds:
                pieces.append(text[done : find.start])
                if find.replacement is None:
                    found[find.rule] += 1
                    pieces.append(self.pseudonym(find.rule, find.value))
                else:
                    found.update(find.inner)
                    pieces.append(find.replacement)
                done = find.end
            pieces.append(text[done:])
            text = "".join(pieces)
        return text

    def _finds(self, text: str, depth: int) -> list[Find]:
        """Return the finds to replace, in order, without overlaps."""
        views = views_of(text)
        pseudonyms = [match.span() for match in PSEUDONYM.finditer(text)] if "<" in text else []
        finds: list[Find] = []
        for level, view in enumerate(views):
            whole = level + 1 == len(views) or views[level + 1].form
            for start, end, rule in (self._rules if whole else self._quoted).find(view.text):
                value = view.text[start:end]
                if not any(fully_matches(pattern, value) for pattern in self._allow):
                    finds.append(Find(*view.span(start, end), rule.name, value, rule.rank, level))
            if whole and depth < _MAX_DEPTH:
                finds.extend(self._contained(view, level, depth))
        if not finds:
            return finds
        trimmed = (_trimmed(find, text, views, pseudonyms) for find in finds)
        return _without_overlaps([find for find in trimmed if find is not None])

    def _contained(self, view: View, level: int, depth: int) -> Iterator[Find]:
        """Yield the containers of one view whose content has a value."""
        for piece in find_containers(view.text):
            inner: Counter[str] = Counter()
            redacted = self._redact(piece.content, inner, depth + 1)
            if inner:
                start, end = view.span(piece.start, piece.end)
                yield Find(start, end, "", "", _CONTAINER_RANK, level, piece.wrap(redacted), inner)


@lru_cache(maxsize=64)
def _rules_of(options: RedactionOptions, only: frozenset[str] | None) -> tuple[PrefilteredRules, PrefilteredRules]:
    """Return the rules of these options, and those of them that read quotation marks."""
    rules = inline_rules(options) if "inline" in options.tiers else ()
    if only is not None:
        rules = tuple(rule for rule in rules if rule.name in only)
    else:
        custom = [
            Rule(name, _CUSTOM_RANK, by_tenant_pattern(pattern), reads_quotes=True, whole_text_only=True)
            for name, pattern in options.custom
        ]
        rules = (*rules, *custom, *tier_rules(options.tiers))
    return PrefilteredRules(rules), PrefilteredRules([rule for rule in rules if rule.reads_quotes])


def _trimmed(find: Find, text: str, views: list[View], pseudonyms: list[tuple[int, int]]) -> Find | None:
    """Return the find without partial escapes and partial pseudonyms; None if nothing is left to replace."""
    start, end = find.start, find.end
    for deeper in views[find.level + 1 :]:
        start, end = deeper.snapped(start, end)
    rest = ""
    if pseudonyms:
        k = max(0, bisect_right(pseudonyms, (start, 0)) - 1)
        done = start
        for low, high in islice(pseudonyms, k, None):
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
    return None if find.replacement is not None else find._replace(start=start, end=end, value=text[start:end])


def _without_overlaps(finds: list[Find]) -> list[Find]:
    """Choose, of overlapping finds, the one of lowest rank, then the longest, then that of the deepest view."""
    chosen: list[Find] = []
    starts: list[int] = []
    for find in sorted(finds, key=lambda f: (f.rank, f.start - f.end, -f.level, f.start)):
        place = bisect_left(starts, find.start)
        free = place == len(starts) or starts[place] >= find.end
        if free and (place == 0 or chosen[place - 1].end <= find.start):
            starts.insert(place, find.start)
            chosen.insert(place, find)
    return chosen
