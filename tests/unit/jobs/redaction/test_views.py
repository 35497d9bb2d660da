"""Encoded values are found, and the encoding stays valid."""

import base64
import html
import json
import urllib.parse
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redaction_corpus import corpus, texts

from stepstream.jobs.redaction import Redactor

REDACTOR = Redactor(b"key")
MAIL = "ada@example.org"
WAYS: dict[str, tuple[Callable[[str], str], Callable[[str], str]]] = {
    "json": (json.dumps, json.loads),
    "json in json": (lambda t: json.dumps(json.dumps({"a": t})), lambda t: json.loads(json.loads(t))["a"]),
    "escaped": (lambda t: json.dumps(t).replace("@", "\\u0040").replace("e", "\\u0065"), json.loads),
    "base64": (lambda t: base64.b64encode(t.encode()).decode(), lambda t: base64.b64decode(t).decode()),
    "url-safe": (lambda t: base64.urlsafe_b64encode(t.encode()).decode().rstrip("="),
                 lambda t: base64.urlsafe_b64decode(t + "=" * (-len(t) % 4)).decode()),
    "base64 twice": (lambda t: base64.b64encode(base64.b64encode(t.encode())).decode(),
                     lambda t: base64.b64decode(base64.b64decode(t)).decode()),
    "wrapped base64": (lambda t: base64.encodebytes(t.encode()).decode(), lambda t: base64.b64decode(t).decode()),
    "hex": (lambda t: t.encode().hex(), lambda t: bytes.fromhex(t).decode()),
    "url": (lambda t: urllib.parse.quote(t, safe=""), urllib.parse.unquote),
    "form": (urllib.parse.quote_plus, urllib.parse.unquote_plus),
    "html": (lambda t: html.escape(t).replace("@", "&#64;"), html.unescape),
    "json of url": (lambda t: json.dumps({"u": urllib.parse.quote(t)}),
                    lambda t: urllib.parse.unquote(json.loads(t)["u"])),
}  # fmt: skip
SENTENCE = f"First line, then:\nwrite to {MAIL} about it, please and thank you very much for all of the help so far"


@pytest.mark.parametrize("way", WAYS)
def test_an_encoded_value_is_found_and_the_encoding_stays_valid(way: str) -> None:
    encode, decode = WAYS[way]
    found: Counter[str] = Counter()
    redacted = REDACTOR.redact(encode(SENTENCE), found)
    assert found == {"email": 1}
    assert decode(redacted) == SENTENCE.replace(MAIL, REDACTOR.pseudonym("email", MAIL))


@pytest.mark.parametrize("way", WAYS)
def test_an_encoded_text_without_values_does_not_change(way: str) -> None:
    text = WAYS[way][0]("The order was sent on Monday;\nit should arrive within two days, 100% sure & well packed.")
    assert REDACTOR.redact(text, Counter()) is text


def test_a_letter_of_an_escape_is_not_part_of_a_value() -> None:
    text = json.dumps({"t": f"a\n{MAIL}"})
    assert json.loads(REDACTOR.redact(text, Counter()))["t"] == f"a\n{REDACTOR.pseudonym('email', MAIL)}"


def test_a_password_with_escaped_quotes_is_replaced_completely() -> None:
    text = json.dumps({"password": 'hun"ter2\\x'})
    assert "ter2" not in REDACTOR.redact(text, Counter())
    json.loads(REDACTOR.redact(text, Counter()))


@pytest.mark.parametrize(
    "odd", ["4111\u00a01111\u00a01111\u00a01111", "ada＠example.org", "ad\u200ba@exam\u00adple.org"]
)
def test_typographic_characters_hide_no_value(odd: str) -> None:
    found: Counter[str] = Counter()
    REDACTOR.redact(f"see {odd} ok", found)
    assert found.total() == 1


CORPUS = [text for half in ("development", "held_out") for s in corpus(half, 120, seed=9) for text in texts(s.step)]


@settings(max_examples=150)
@given(st.lists(st.sampled_from(CORPUS) | st.text(max_size=40), min_size=1, max_size=5), st.randoms())
def test_redaction_is_idempotent_and_joined_texts_have_the_same_suspects(parts: list[str], rng: object) -> None:
    glued = "".join(parts)
    once = REDACTOR.redact(glued, Counter())
    again: Counter[str] = Counter()
    assert REDACTOR.redact(once, again) == once
    assert not again
    suspects = REDACTOR.suspects(parts)
    assert all(place in suspects or REDACTOR.redact(part, Counter()) == part for place, part in enumerate(parts))


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_redacted_json_is_valid_json() -> None:
    documents = [text for text in CORPUS if is_json(text)]
    assert len(documents) > 50
    assert [text for text in documents if not is_json(REDACTOR.redact(text, Counter()))] == []


@pytest.mark.parametrize(
    "piece",
    ["a@", "1 ", "sk-", "a-", "eyJ", "@", "password=", 'password": "', "://a:", "\\u0040", "%40", "&#64;",
     "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "4111 ", "+1 ", "DE89 ", "1.", ":a",
     "AKIA", "<EMAIL:", "token ", "\\\\", "x=a+",
     "-----BEGIN RSA PRIVATE KEY-----\n", "authorization: ", "QUJD", "414243", "0" , "tel ", "my name is A "],
)  # fmt: skip
def test_hostile_text_is_searched_in_linear_time(piece: str) -> None:
    # 100 kB: where anything took time that grows with the square of the length, this would take minutes.
    REDACTOR.redact(piece * (100_000 // len(piece)), Counter())
    REDACTOR.redact(piece * (50_000 // len(piece)) + "!" + MAIL, Counter())
