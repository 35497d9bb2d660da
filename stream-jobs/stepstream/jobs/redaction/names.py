"""Names of people where the context tells them. Names elsewhere are for the sampled job `inspect`."""

import re
from collections.abc import Iterator

from stepstream.jobs.redaction.rule import Rule

_WORD = r"[^\W\d_a-z][^\W\d_]*(?:['’-][^\W\d_]+)?"
_NAME = rf"{_WORD}(?:\s(?:(?:van|von|de|der|den|da|di|del|la|le|bin|al|y|dos)\s){{0,2}}{_WORD}){{0,3}}"
_SAID = re.compile(
    rf"(?:(?i:my name is|my name's|name:|i am called|this is|ich hei(?:ß|ss)e|mein name ist|je m'appelle|me llamo"
    rf"|mi nombre es|dear|hi|hello|regards,|cheers,|sincerely,|signed,|caller:|customer:|patient:|contact:)\s{{1,3}}"
    rf"|\b(?:Mr|Mrs|Ms|Miss|Dr|Prof|Herr|Frau|Señora?|Mme)\.?\s)(?P<value>{_NAME})"
)
_KEYED = re.compile(
    r"[\"'](?:(?P<sure>(?:first|last|middle|full|given|family|sur|maiden|customer|user|patient|contact|employee|account"
    r"|recipient|sender|author|cardholder|passenger)_?-?(?i:name)s?|surname|cardholder|(?:first|last|full)name)|name)[\"']"
    rf"\s{{0,3}}:\s{{0,3}}[\"'](?P<value>{_NAME})[\"']"
)
_MARKS = ("name", "dear", "hi ", "hello", "regards", "cheers", "sincerely", "signed", "caller", "customer", "patient",
          "contact", "this is", "called", "mr", "ms", "dr", "prof", "herr", "frau", "señor", "mme", "heiße", "heisse",
          "appelle", "llamo", "nombre", "miss", "surname", "cardholder")  # fmt: skip
_NOBODY = frozenset({
    "the", "a", "an", "there", "all", "everyone", "team", "sir", "madam", "support", "world", "customer", "user",
    "friend", "folks", "i", "we", "you", "it", "this", "that", "not", "unknown", "anonymous", "admin", "administrator",
    "assistant", "agent", "system", "test",
})  # fmt: skip


def _names(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _SAID.finditer(text, low, high):
        if match["value"].split()[0].lower() not in _NOBODY:
            yield match.span("value")
    for match in _KEYED.finditer(text, low, high):
        # A tool or a file has a `name` too: a person's has two words.
        if match["sure"] or " " in match["value"]:
            yield match.span("value")


NAMES = (Rule("name", 70, _names, _MARKS),)
