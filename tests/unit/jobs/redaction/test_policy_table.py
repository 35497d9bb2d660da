"""The redaction table of a policy selects rules, and an error names the wrong entry."""

import resource
from collections import Counter
from typing import Any

import pytest
from required_tools import require_package
from stream_records import make_feedback, make_steps

from stepstream.jobs.governance.govern_step import govern_feedback, govern_step
from stepstream.jobs.redaction import RedactionError, RedactionOptions, Redactor, parse_options, tenant_key
from stepstream.topics.events import new_message, new_tool_call


@pytest.fixture
def detectors() -> None:
    """Skip the test if the extra `detectors` is not installed."""
    require_package("presidio_analyzer")


def redacted(text: str, **table: Any) -> tuple[str, dict[str, int]]:
    found: Counter[str] = Counter()
    return Redactor(b"key", parse_options(table)).redact(text, found), dict(found)


def test_an_empty_table_is_the_built_in_policy() -> None:
    assert parse_options({}) == RedactionOptions()


def test_rules_can_be_disabled_and_enabled() -> None:
    assert redacted("ada@example.org", rules={"email": False}) == ("ada@example.org", {})
    assert redacted("00:1B:44:11:3A:B7")[1] == {}
    assert redacted("00:1B:44:11:3A:B7", rules={"mac": True})[1] == {"mac": 1}


def test_names_are_redacted_only_if_enabled() -> None:
    assert redacted("My name is Ada Lovelace")[1] == {}
    assert redacted("My name is Ada Lovelace", names=True)[1] == {"name": 1}


def test_regions_select_national_ids() -> None:
    text = "078-05-1120 and 12345678Z"
    assert redacted(text)[1] == {"us_ssn": 1, "es_id": 1}
    assert redacted(text, regions=["es"])[1] == {"es_id": 1}


def test_allowed_values_are_not_redacted() -> None:
    text, found = redacted("help@example.org and ada@example.org", allow=[r"help@example\.org"])
    assert text.startswith("help@example.org and <EMAIL:")
    assert found == {"email": 1}


def test_custom_rules_are_applied() -> None:
    text, found = redacted("ticket of EMP-123456.", custom={"employee": r"EMP-\d{6}"})
    assert text.startswith("ticket of <EMPLOYEE:")
    assert found == {"employee": 1}
    assert redacted("badge 77 ok", custom={"badge": r"badge (?P<value>\d+)"})[0].startswith("badge <BADGE:")


def test_custom_rules_search_any_text() -> None:
    text, found = redacted("Köln \ud800 EMP-123456, dann für EMP-654321 und EMP-123456", custom={"e": r"EMP-\d{6}"})
    assert found == {"e": 3}
    assert [part[:3] for part in text.split()] == ["Köl", "\ud800", "<E:", "dan", "für", "<E:", "und", "<E:"]
    optional = {"e": r"badge(?: (?P<value>é\d+))?"}
    assert redacted("né badge, badge é77 und badge é7.", custom=optional)[1] == {"e": 2}


@pytest.mark.parametrize("pattern", ["(a|a)+$X", "(a+)+$X", "(?:a|aa)*X", "(?:a?){30}a{30}X"])
def test_no_pattern_of_a_tenant_takes_more_than_linear_time(pattern: str) -> None:
    limit = resource.getrusage(resource.RUSAGE_SELF).ru_utime + 20
    for table in ({"custom": {"mine": pattern}}, {"allow": [pattern], "custom": {"mine": "a+"}}):
        redacted("a" * 50_000 + " b", **table)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime < limit


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rule": {}}, r"no entry rule; it has tiers"),
        ({"tiers": ["inlin"]}, r"redaction\.tiers does not know inlin; it knows detect_secrets, inline, presidio"),
        ({"tiers": []}, r"name at least one"),
        ({"tiers": "inline"}, r"must be a list of strings"),
        ({"names": "yes"}, r"must be true or false"),
        ({"regions": ["xx"]}, r"redaction\.regions does not know xx"),
        ({"rules": {"emails": False}}, r"redaction\.rules does not know emails"),
        ({"rules": {"email": 0}}, r"table of rule = true or false"),
        ({"custom": {"Email": "x"}}, r"redaction\.custom\.Email: choose a name"),
        ({"custom": {"email": "x"}}, r"redaction\.custom\.email: choose a name"),
        ({"custom": {"a": "("}}, r"redaction\.custom\.a is not a regular expression"),
        ({"custom": {"a": "(?=x)x"}}, r"redaction\.custom\.a .* RE2 accepts: .*RE2 has no lookaround"),
        ({"custom": {"a": r"(x)\1"}}, r"RE2 has no lookaround and no back references"),
        ({"custom": {"a": "(?:.{0,99}x){9}"}}, r"instructions, and 1500 are allowed"),
        ({"allow": ["(?<!x)y"]}, r"redaction\.allow .* RE2 accepts"),
        ({"custom": {"a": "x*"}}, r"matches empty text"),
        ({"allow": ["x" * 600]}, r"600 characters; shorten it to 500"),
    ],
)
def test_a_wrong_entry_is_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(RedactionError, match=message):
        parse_options(table)


def test_a_tier_without_its_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedactionError, match=r"install stepstream\[detectors\]"):
        parse_options({"tiers": ["inline", "presidio"]})
    with pytest.raises(RedactionError, match="not installed"):
        Redactor(b"key", RedactionOptions(tiers=frozenset({"detect_secrets"})))


@pytest.mark.usefixtures("detectors")
def test_presidio_gives_the_same_pseudonyms() -> None:
    text, found = redacted("IBAN DE89370400440532013000, again DE89370400440532013000", tiers=["presidio"])
    assert found == {"presidio_iban_code": 2}
    assert len({part.rstrip(",") for part in text.split() if part.startswith("<")}) == 1
    assert redacted(text, tiers=["presidio"]) == (text, {})


@pytest.mark.usefixtures("detectors")
def test_detect_secrets_finds_values_without_an_inline_rule() -> None:
    text = "mailchimp 0123456789abcdef0123456789abcdef-us10"
    assert redacted(text)[1] == {}
    assert redacted(text, tiers=["inline", "detect_secrets"])[1] == {"detect_secrets_mailchimp": 1}


def test_pseudonyms_of_two_tenants_differ() -> None:
    one, other = (Redactor(tenant_key(b"master", tenant)) for tenant in ("one", "other"))
    assert one.pseudonym("email", "a@b.example") != other.pseudonym("email", "a@b.example")
    assert tenant_key(b"master", "one") == tenant_key(b"master", "one") != tenant_key(b"else", "one")


def test_every_text_of_a_step_is_redacted_and_its_keys_stay() -> None:

    mail = "ada@example.org"
    call = new_tool_call(call_id=mail, name=mail, arguments=mail, result=mail, error=mail)
    message = new_message(role="user", content=mail, name=mail, reasoning=mail, tool_call_id=mail, tool_calls=[call])
    step = make_steps("t", task_id=mail, environment=mail, group_id=mail, agent=mail, user=mail, error=mail)[0]
    governed, _ = govern_step("test@1", step | {"messages": [message], "response": message}, True, Redactor(b"key"))
    assert str(governed).count(mail) == 1
    assert governed["user"] == mail
    assert governed["trajectory_id"] == "t"
    assert governed["task_id"] == governed["environment"] == Redactor(b"key").pseudonym("email", mail)


def test_a_redacted_id_alone_leaves_a_step_trainable() -> None:

    step = make_steps("t", task_id="mail of ada@example.org")[0]
    governed, clean = govern_step("test@1", step, True, Redactor(b"key"))
    assert clean
    assert governed["governed"] is not None
    assert governed["governed"]["trainable"]
    assert governed["governed"]["redactions"] == {"email": 1}


def test_feedback_is_redacted_in_texts_and_ids() -> None:

    mail = "ada@example.org"
    feedback = make_feedback("t", comment=mail, demonstration=mail, category=mail, name=mail, tool_call_id=mail)
    assert mail not in str(govern_feedback("test@1", feedback, Redactor(b"key")))
