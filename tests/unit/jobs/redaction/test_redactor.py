"""Secrets are replaced by stable pseudonyms in any surroundings; ordinary text stays."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.redaction import Redactor, luhn

REDACTOR = Redactor(b"key")
SECRETS = {
    "email": ["ada@example.org", "a.b+c@sub.example.co.uk"],
    "aws_key": ["AKIAIOSFODNN7EXAMPLE"],
    "github_token": ["ghp_" + "a1B2" * 9, "github_pat_" + "x" * 30],
    "api_key": ["sk-proj-abcdefghijklmnopqrstu123", "sk-" + "A1b2C3d4E5f6G7h8"],
    "slack_token": ["xoxb-123456789012-abcdefghijkl"],
    "google_key": ["AIza" + "S" * 35],
    "jwt": ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc_DEF-123"],
    "card": ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"],
    "private_key": ["-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----"],
}
CASES = [(rule, value) for rule, values in SECRETS.items() for value in values]


@pytest.mark.parametrize(("rule", "value"), CASES)
@pytest.mark.parametrize("around", ["{}", "mail {} now", '{{"input": "{}"}}', "see ({}), please", "a={};b=1"])
def test_a_secret_is_replaced_in_any_surroundings(rule: str, value: str, around: str) -> None:
    found: Counter[str] = Counter()
    text = REDACTOR.redact(around.format(value), found)
    assert value not in text
    assert found == {rule: 1}
    assert text == around.format(REDACTOR.pseudonym(rule, value))


def test_a_bearer_token_is_replaced_and_its_header_stays() -> None:
    found: Counter[str] = Counter()
    text = REDACTOR.redact("Authorization: Bearer abcdefghijklmnop.qrstuv==", found)
    assert text.startswith("Authorization: Bearer <BEARER:")
    assert found == {"bearer": 1}


@pytest.mark.parametrize(
    "text",
    [
        "get_value(a) + calc(4+7) = 11",
        "1234 5678 9012 3456",  # fails the check digit
        "0000 0000 0000 0000",
        "step 12345678901234567890123 of many",
        "user@localhost, or @ada on the forum",
        "sk-learn is a library; task-force; risk-averse",
        "3.14159265358979323846",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    found: Counter[str] = Counter()
    assert REDACTOR.redact(text, found) is text or REDACTOR.redact(text, found) == text
    assert not found


def test_the_pseudonym_of_a_value_depends_only_on_the_key() -> None:
    found: Counter[str] = Counter()
    once = REDACTOR.redact("ada@example.org wrote to ada@example.org", found)
    assert found == {"email": 2}
    first, second = (word for word in once.split() if word.startswith("<"))
    assert first == second
    assert Redactor(b"other").redact("ada@example.org", Counter()) != first


def test_luhn() -> None:
    assert luhn("4111 1111 1111 1111")
    assert not luhn("4111 1111 1111 1112")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_redacting_twice_changes_nothing(text: str) -> None:
    once = REDACTOR.redact(text, Counter())
    again: Counter[str] = Counter()
    assert REDACTOR.redact(once, again) == once
    assert not again


@given(
    before=st.text(alphabet=" abc(,;\n", max_size=20),
    case=st.sampled_from(CASES),
    after=st.text(alphabet=" (,;\n)", max_size=20),
)
def test_no_secret_remains_in_random_surroundings(before: str, case: tuple[str, str], after: str) -> None:
    _, value = case
    text = f"{before} {value} {after}"
    assert value not in REDACTOR.redact(text, Counter())


def test_hostile_text_is_searched_in_linear_time() -> None:
    # 200 kB without a match after a mark: a pattern that backtracks over it would take minutes.
    for text in ("a" * 200_000 + "@", "1 " * 100_000, "sk-" + "a-" * 100_000, "eyJ" * 60_000, "@" * 200_000):
        REDACTOR.redact(text, Counter())
