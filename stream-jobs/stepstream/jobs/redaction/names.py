"""Names of people where the context tells them. Names elsewhere are for the sampled job `inspect`."""

import re
from collections.abc import Iterator

from stepstream.jobs.redaction.relaxed import relaxed
from stepstream.jobs.redaction.rule import Rule, pattern_rule

_WORD = r"[^\W\d_a-z][^\W\d_]*(?:['’-][^\W\d_]+)?"
_NAME = rf"{_WORD}(?:\s(?:(?:van|von|de|der|den|da|di|del|la|le|bin|al|y|dos)\s){{0,2}}{_WORD}){{0,3}}"
_SAID = (
    rf"(?:(?i:my name is|my name's|name:|i am called|this is|ich hei(?:ß|ss)e|mein name ist|je m'appelle|me llamo"
    rf"|mi nombre es|dear|hi|hello|regards,|cheers,|sincerely,|signed,|caller:|customer:|patient:|contact:)\s{{1,3}}"
    rf"|\b(?:Mr|Mrs|Ms|Miss|Dr|Prof|Herr|Frau|Señora?|Mme)\.?\s)(?P<value>{_NAME})"
)
_KEYED = re.compile(
    r"[\"'](?:(?P<sure>(?:first|last|middle|full|given|family|sur|maiden|customer|user|patient|contact|employee|account"
    r"|recipient|sender|author|cardholder|passenger)_?-?(?i:name)s?|surname|cardholder|(?:first|last|full)name)|name)[\"']"
    rf"\s{{0,3}}:\s{{0,3}}[\"'](?P<value>{_NAME})[\"']"
)
_NOBODY = frozenset({
    "the", "a", "an", "there", "all", "everyone", "team", "sir", "madam", "support", "world", "customer", "user",
    "friend", "folks", "i", "we", "you", "it", "this", "that", "not", "unknown", "anonymous", "admin", "administrator",
    "assistant", "agent", "system", "test",
})  # fmt: skip


def _somebody(text: str, start: int, end: int) -> bool:
    return text[start:end].split()[0].lower() not in _NOBODY


def _keyed(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _KEYED.finditer(text, low, high):
        # A tool or a file has a `name` too: a person's has two words.
        if match["sure"] or " " in match["value"]:
            yield match.span("value")


NAMES = (
    pattern_rule("name", 70, _SAID, _somebody, "words"),
    Rule("name", 70, _keyed, relaxed(_KEYED.pattern), told_by="words"),
)
