"""The policy file: every entry is read, and an error names the wrong one."""

import pytest

from stepstream.jobs.governance.policy import PolicyError, PolicyFile, check, next_version

WHOLE = """
[consent]
default = "analyse"
maximum = "train"
[redaction]
names = true
[quality]
keep_out = ["looping"]
languages = ["en", "de"]
[near_duplicates]
cap = 3
threshold = 1
window = 500
[inspect]
share = 0.1
hold = false
"""


def test_an_empty_file_is_the_built_in_policy() -> None:
    policy = check("")
    assert policy == PolicyFile()
    assert (policy.consent.default, policy.consent.maximum) == ("train", "train")
    assert policy.near_duplicates.cap == 0
    assert policy.inspect.share == 0
    assert policy.quality.keep_out == ("empty",)


def test_every_entry_is_read() -> None:
    policy = check(WHOLE)
    assert policy.consent.default == "analyse"
    assert policy.redaction_options().names
    assert policy.quality.languages == ("en", "de")
    assert (policy.near_duplicates.cap, policy.near_duplicates.threshold) == (3, 1.0)
    assert not policy.inspect.hold


def test_every_flag_and_language_may_be_named() -> None:
    flags = ["empty", "looping", "partial_failure", "truncated", "wrong_language", "wrong_language:de"]
    assert check(f"[quality]\nkeep_out = {flags}\nlanguages = ['ja', 'tr']").quality.keep_out == tuple(flags)


def test_a_new_version_is_above_all_versions_that_applied_before() -> None:
    policies = {"a": {"version": 4}, "*": {"version": 6}}
    assert next_version({}, "a") == 1
    assert next_version({"a": {"version": 4}}, "a") == 5
    assert next_version(policies, "a") == 7
    assert next_version(policies, "b") == 7
    assert next_version({"a": {"version": 4}}, "*") == 5


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("x=", "not TOML"),
        ("[consnt]", "consnt is unknown: there are consent, redaction, quality"),
        ("[consent]\nmax = 'train'", "consent.max is unknown: there are default, maximum"),
        ("[consent]\ndefault = 'maybe'", "consent.default: input should be 'train', 'analyse' or 'none'"),
        ("[near_duplicates]\ncap = '3'", "near_duplicates.cap: input should be a valid integer"),
        ("[near_duplicates]\nthreshold = 0", "near_duplicates.threshold: input should be greater than 0"),
        ("quality = 3", "quality: "),
        ("[redaction]\ntiers = ['psychic']", "redaction.tiers does not know psychic"),
        ("[quality]\nkeep_out = ['empty', 'loping']", "quality.keep_out does not know loping; it knows empty, looping"),
        ("[quality]\nkeep_out = ['wrong_language:english']", "quality.keep_out does not know wrong_language:english"),
        ("[quality]\nlanguages = ['english']", "quality.languages does not know english; it knows ar, de, el, en"),
    ],
)
def test_a_wrong_entry_is_named(document: str, message: str) -> None:
    with pytest.raises(PolicyError) as fault:
        check(document)
    assert message in str(fault.value)
