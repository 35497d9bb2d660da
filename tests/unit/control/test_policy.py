"""Control policies: values, contradictions, and the line of each fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.control.decide.policy import ControlPolicy, PolicyError
from stepstream.services.control.decide.policy_lines import line_of

POLICY = """\
tenant = "acme"
agents = ["shop-*"]
quiet_hours = ["22:00-06:00"]

[levers.tools]
cooldown_s = 60

[canary]
shares = [0.05, 0.2]
"""


def test_entries_lie_over_the_defaults_of_their_lever() -> None:
    policy = ControlPolicy.parse(POLICY)
    assert policy.levers["tools"].cooldown_s == 60
    assert policy.levers["tools"].blast_radius == 0.1
    assert policy.levers["weights"].cost == 10
    assert policy.covers("acme", "shop-1", "m")
    assert not policy.covers("acme", "desk", "m")
    assert [policy.is_quiet(hour * 3_600_000_000) for hour in (21, 22, 5, 6)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ("alpha = 1", r"line 1: alpha: .*known: tenant"),
        ("[levers.wieghts]\ncost = 1", r"line 1: levers\.wieghts: .*known: tools"),
        ("[levers.tools]\n\ncosts = 1", r"line 3: levers\.tools\.costs: .*known: enabled"),
        ("[rules]\ntool_error = false", r"line 2: rules\.tool_error: .*known: tool_errors"),
        ("# times\nquiet_hours = ['25:00-06:00']", r"line 2: quiet_hours: '25:00-06:00' is no time span"),
        ("quiet_hours = ['00:00-12:00', '12:00-00:00']", r"line 1: quiet_hours: they cover the whole day"),
        ("[canary]\nshares = [0.3, 0.1]", r"line 2: canary\.shares: .* must rise"),
        ("[canary]\nshares = [0.5]", r"levers\.prompt\.blast_radius \(default\)|levers\.prompt"),
        ("[levers]\nprompt.blast_radius = 0.1", r"line 2: levers\.prompt\.blast_radius: canary\.shares reaches 0\.3"),
        ("[levers.weights]\napprovals = 2\nroles = []", r"line 3: levers\.weights\.roles: .* no role may give"),
        ("approve_promotions = true\n[levers.weights]\nroles = []", r"line 3: levers\.weights\.roles: .* may give"),
        ("[levers.weights]\nroles = ['boss']", r"line 2: levers\.weights\.roles: no role 'boss'"),
        ("[levers.tools]\nbudget_per_day = 0", r"line 2: .*set enabled = false"),
        ("own_rules = ['headroom']", r"line 1: own_rules: 'headroom' is a built-in rule"),
        ("own_rules = ['canary']", r"line 1: own_rules: 'canary' is a built-in rule"),
        ("own_rules = ['canary_without_result']", r"line 1: own_rules: .* is a built-in rule"),
        ("tenant = \n", r"it is not TOML: .*line 1"),
    ],
)
def test_a_fault_is_refused_with_its_line(document: str, fault: str) -> None:
    with pytest.raises(PolicyError, match=fault):
        ControlPolicy.parse(document)


def test_files_with_the_same_meaning_have_the_same_hash() -> None:
    assert ControlPolicy.parse("").hash == ControlPolicy.parse("# nothing\nfreeze = false").hash
    assert ControlPolicy.parse("").hash != ControlPolicy.parse("freeze = true").hash


def test_an_irreversible_lever_needs_a_person() -> None:
    policy = ControlPolicy.parse("[levers.memory]\nreversible = false\n[levers.weights]\nblast_radius = 0.6")
    assert [policy.approvals_for(lever) for lever in ("memory", "weights", "tools")] == [1, 1, 0]


@given(st.text(alphabet="[]a.b'\"=1,# \n", max_size=60))
def test_lines_of_any_text_are_found_or_missing(document: str) -> None:
    line = line_of(document, ["a", "b"])
    assert line is None or 1 <= line <= len(document.splitlines())
