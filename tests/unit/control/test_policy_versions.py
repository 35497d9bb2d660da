"""Versions of control policies: applied, frozen, unfrozen."""

from itertools import count

import pytest

from stepstream.services.control.decide.policy import ControlPolicy as Policy
from stepstream.services.control.decide.policy import PolicyError
from stepstream.services.control.policy_versions import PolicyRefused, applied, frozen
from stepstream.topics.events import ControlPolicy

FILE = "tenant = 'acme'\nagents = ['shop']\n"


def version(*policies: ControlPolicy, name: str = "shop", document: str = FILE) -> ControlPolicy:
    return applied(policies, name=name, document=document, author="ada", event_id="e", now_us=5)


def freeze(policies: list[ControlPolicy], tenant: str, name: str = "", *, to: bool = True) -> list[ControlPolicy]:
    ids = count()
    identity = {"author": "bob", "now_us": 7, "new_id": lambda: str(next(ids))}
    return frozen(policies, tenant, name, is_frozen=to, **identity)  # type: ignore[arg-type]


def test_a_file_becomes_the_next_version_of_its_tenant() -> None:
    first = version()
    assert (first["tenant"], first["version"], first["frozen"], len(first["hash"])) == ("acme", 1, False, 64)
    assert version(first)["version"] == 2
    with pytest.raises(PolicyError, match="line 1"):
        version(document="x = 1")


def test_freezing_is_kept_until_unfreezing() -> None:
    one, other = version(), version(name="desk")
    changed = freeze([one, other], "acme")
    assert [(each["name"], each["frozen"], each["version"], each["author"]) for each in changed] == [
        ("desk", True, 2, "bob"),
        ("shop", True, 2, "bob"),
    ]
    assert len({each["event_id"] for each in changed}) == 2
    assert freeze(changed, "acme") == []
    assert version(changed[1])["frozen"]
    assert [each["name"] for each in freeze(changed, "acme", "shop", to=False)] == ["shop"]


def test_a_policy_of_a_new_name_is_frozen_with_its_whole_tenant() -> None:
    other = version(document="tenant = 'other'")
    both = freeze([version(), version(name="desk"), other], "acme")
    late = version(*both, other, name="late")
    assert (late["frozen"], late["version"]) == (True, 1)
    [one] = freeze([*both, late], "acme", "desk", to=False)
    assert not version(one, both[1], name="late")["frozen"], "no freeze of the whole tenant any more"
    assert not version(*both, name="late", document="tenant = 'other'")["frozen"], "another tenant"
    for each in freeze([*both, late], "acme", to=False):
        assert not each["frozen"]


@pytest.mark.parametrize("tenant", ['a"b\\c', "a\nb", "a\x00b", "a\x7fb", "zürich/☃", " "])
def test_a_tenant_of_any_name_is_frozen(tenant: str) -> None:
    [made] = freeze([], tenant)
    assert (made["tenant"], Policy.parse(made["document"]).tenant) == (tenant, tenant)


def test_a_tenant_without_a_policy_is_frozen_by_an_empty_one() -> None:
    [made] = freeze([version()], "other")
    assert (made["tenant"], made["name"], made["version"], made["frozen"]) == ("other", "default", 1, True)
    assert made["document"] == 'tenant = "other"\n'
    assert version(made, name="default", document=made["document"])["hash"] == made["hash"]
    assert freeze([], "other", to=False) == []
    with pytest.raises(PolicyRefused, match="it has: shop"):
        freeze([version()], "acme", "desk")
