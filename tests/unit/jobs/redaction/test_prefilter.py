"""Hints match every text in which their rule finds a value, so that the prefilter loses nothing."""

import re
import sys
from collections import Counter
from typing import Any

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st
from redaction_corpus import corpus, texts

from stepstream.jobs.redaction import RedactionOptions, Redactor, prefilter
from stepstream.jobs.redaction.api_keys import _API_KEY, _AZURE, _DISCORD, _TOKENS
from stepstream.jobs.redaction.assignments import _AUTHORIZATION, _BEARER, _SHELL, _URL
from stepstream.jobs.redaction.catalogue import inline_rules
from stepstream.jobs.redaction.contacts import _ANNOUNCED, _IPV4, _IPV6, _KEYED, _MAC
from stepstream.jobs.redaction.national import IDS
from stepstream.jobs.redaction.numbers import _CARD, _IBAN, _PHONE, _PHONE_AFTER_WORD
from stepstream.jobs.redaction.prefilter import PrefilteredRules
from stepstream.jobs.redaction.re2_patterns import FOREIGN, encode, relax

OPTIONS = RedactionOptions(names=True, on=frozenset({"mac"}))
RULES = inline_rules(OPTIONS)
HINTED = PrefilteredRules(RULES)
REDACTOR = Redactor(b"key", OPTIONS)
PATTERNS = [
    *(re.compile(pattern) for _, pattern in _TOKENS),
    *(re.compile(pattern) for pattern in (_AZURE, _DISCORD, _CARD, _IBAN, _IPV4, _ANNOUNCED, _MAC)),
    *(re.compile(kind.formatted) for kind in IDS if kind.formatted),
    *(re.compile(f"(?:{kind.words})[^\\W\\d]{{0,3}}.{{0,3}}(?:{kind.bare})") for kind in IDS if kind.bare),
    _API_KEY, _AUTHORIZATION, _BEARER, _SHELL, _URL, _IPV6, _PHONE, _PHONE_AFTER_WORD, _KEYED,
]  # fmt: skip
CORPUS = [text for half in ("development", "held_out") for s in corpus(half, 150, seed=3) for text in texts(s.step)]
ASSIGNED = st.tuples(
    st.sampled_from(["", "my_", "<", "--", "?", ";", "X-"]),
    st.sampled_from(["password", "Passwd", "pwd", "api-key", "client_secret", "token", "SESSION", "contraseña"]),
    st.sampled_from(
        ["=", ": ", '": "', '\\": \\"', " = ", ":=", " is ", " ist: ", "s '", ">", " ", ": str = '", "=>", "] == "]
    ),
    st.from_regex(r"\A[!-~]{3,40}\Z") | st.sampled_from(["Tr0ub4dor4765#", "QTzVVozg7fi5pfTDl2Grukj2jpiY5GHi"]),
    st.sampled_from(["", '"', "'", "</x>", " and", ";x"]),
).map("".join)


def hit(pattern: str, text: str) -> bool:
    return re2.search(pattern, encode(text)) is not None


@settings(max_examples=200)
@given(st.data())
def test_a_relaxed_pattern_matches_every_text_that_the_pattern_matches(data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from(PATTERNS))
    text = data.draw(st.from_regex(pattern))
    assert hit(relax(pattern.pattern, pattern.flags), text) or hit(FOREIGN, text)


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from(CORPUS) | ASSIGNED | st.sampled_from(PATTERNS).flatmap(st.from_regex) | st.text(max_size=9),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["", " ", "\n", "é", "\ud800", "٣"]),
)
def test_the_prefilter_finds_every_match_of_the_rules_also_in_joined_texts(parts: list[str], between: str) -> None:
    text = between.join(parts)
    expected = {(*span, rule.name) for rule in RULES for span in rule.find(text, 0, len(text))}
    assert expected <= {(start, end, rule.name) for start, end, rule in HINTED.find(text)}
    suspects = REDACTOR.suspects(parts)
    assert all(place in suspects or REDACTOR.redact(part, Counter()) == part for place, part in enumerate(parts))


def test_characters_that_ascii_classes_miss_are_foreign() -> None:
    digits = [chr(code) for code in range(128, sys.maxunicode + 1) if chr(code).isdecimal()]
    folded = re.findall("(?i)[a-z0-9_]", "".join(chr(code) for code in range(128, 0x3000)))
    assert len(folded) == 4
    assert [character for character in digits + folded if not hit(FOREIGN, character)] == []


@pytest.mark.parametrize(
    ("pattern", "loose"),
    [
        (r"ab{0,9}c?", "a"),
        (r"(?<![a-z])x(?=yz)", "xyz"),
        (r"(a|b)\1{2,200}c", "abac"),
        (r"(?i:key)s", "KEYs"),
        (r"\bkey\b[^\W\d]{12,30}.", "key" + "é" * 8 + "."),
        (r"q[\d-]{9,}?(?!\d|\.\d)", "q12345678."),
    ],
)
def test_relaxed_forms(pattern: str, loose: str) -> None:
    assert hit(relax(pattern), loose)


@pytest.mark.parametrize(("pattern", "flags"), [("a.b", re.DOTALL), ("(?s:a.b)", 0), ("(?m)^a", 0)])
def test_an_unknown_flag_or_construct_is_an_error(pattern: str, flags: int) -> None:
    with pytest.raises(ValueError, match="no relaxed form"):
        relax(pattern, flags)


def test_an_automaton_out_of_memory_hides_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfMemory:
        def Match(self, coded: bytes) -> Any:
            return None

    monkeypatch.setattr(prefilter, "compile_set", lambda patterns: OutOfMemory())
    text = "card 4111 1111 1111 1111, é mail ada@example.org"
    assert {rule.name for _, _, rule in PrefilteredRules(RULES).find(text)} == {"card", "email"}


def test_a_pattern_anchored_at_the_begin_searches_each_text_alone() -> None:
    redactor = Redactor(b"key", RedactionOptions(custom=(("employee", r"^EMP-\d{6}$"),)))
    parts = ["see", "EMP-123456", "EMP-123456 or", 'a "quoted\\n" text']
    assert redactor.suspects(parts) == {1}
    assert redactor.redact(parts[1], Counter()).startswith("<EMPLOYEE:")
