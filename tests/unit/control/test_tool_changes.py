"""A change of a tool holds on both tracks: for the stable harness version and for a running canary."""

from typing import Any

import pytest

from stepstream.analytics.tools import Calls
from stepstream.services.control import acts
from stepstream.services.control.decide.diagnosis import diagnose
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import History
from stepstream.services.control.history import DecisionLog, history_of
from stepstream.services.control.scope import Serving, scope_of
from stepstream.services.control.snapshot import snapshot_of
from stepstream.services.control.statistics import Position, Statistics, ToolRow
from stepstream.services.control.undo import undo_harness
from stepstream.topics.catalogue import DECISION_ACTS, DECISIONS
from stepstream.topics.events import Decision, Harness, new_decision, new_harness, new_harness_tool
from stepstream.versions import harnesses
from stepstream.versions.rollouts import ModelVersions

Versions = dict[str, Harness]


def decision(action: Any, lever: Any, target: str) -> Decision:
    return new_decision(
        event_id=f"{action} {target}",
        occurred_at_us=1,
        agent="shop",
        model="m",
        action=action,
        lever=lever,
        target=target,
        rule="canary" if lever == "prompt" else "tool_errors",
        reason="why",
        share=0.3,
    )


def add(versions: Versions, state: str, **content: Any) -> str:
    """Add a version with a content in a state; return its name."""
    record = new_harness(event_id="", occurred_at_us=0, tenant="default", agent="shop", version="", **content)
    version = harnesses.version_of(record)
    versions[version] = harnesses.propose(versions, record)
    if state == "canary":
        versions[version] = harnesses.start_canary(versions, version, 0.3)
    if state == "stable":
        versions[version] = harnesses.promote(versions, version)
    return version


def run(versions: Versions, one: Decision) -> list[str]:
    """Carry out a decision; return the states of the records of harness versions, in order."""
    *made, act = acts.do(one, Serving(ModelVersions(), versions), 2)
    assert act.value["state"] == "done", act.value["reason"]
    versions.update({record.value["version"]: record.value for record in made})
    assert len({record.value["event_id"] for record in made}) == len(made)
    return [record.value["state"] for record in made]


def offers(harness: Harness | None, tool: str) -> bool:
    return harness is None or all(one["enabled"] for one in harness["tools"] if one["name"] == tool)


@pytest.fixture
def versions() -> Versions:
    found: Versions = {}
    add(found, "stable", instructions="Be brief.")
    add(found, "canary", instructions="Be very brief.")
    return found


def test_a_canary_does_not_offer_a_disabled_tool_nor_bring_it_back(versions: Versions) -> None:
    before = harnesses.served_harnesses(versions.values()).canary
    assert before is not None
    assert run(versions, decision("disable", "tools", "get")) == ["stable", "retired", "canary"]
    served = harnesses.served_harnesses(versions.values())
    assert served.canary is not None
    assert (served.canary["instructions"], served.canary["share"]) == ("Be very brief.", 0.3)
    assert served.canary["parents"] == [before["version"]]
    assert not offers(served.stable, "get")
    assert not offers(served.canary, "get")
    assert run(versions, decision("promote", "prompt", served.canary["version"])) == ["stable"]
    served = harnesses.served_harnesses(versions.values())
    assert served.canary is None
    assert served.stable is not None
    assert served.stable["instructions"] == "Be very brief."
    assert not offers(served.stable, "get")


def test_the_undo_of_a_disabled_tool_lets_the_canary_go_on_as_before(versions: Versions) -> None:
    before = harnesses.served_harnesses(versions.values())
    disable = decision("disable", "tools", "get")
    run(versions, disable)
    for one in undo_harness(disable, versions):
        versions[one["version"]] = one
    after = harnesses.served_harnesses(versions.values())
    assert after.stable == before.stable
    assert after.canary is not None
    assert before.canary is not None
    assert (after.canary["version"], after.canary["share"]) == (before.canary["version"], 0.3)


def test_a_canary_that_pins_another_version_of_the_tool_goes_on() -> None:
    versions: Versions = {}
    add(versions, "stable", instructions="Be brief.")
    canary = add(versions, "canary", tools=[new_harness_tool(name="get", version="2")])
    assert run(versions, decision("disable", "tools", "get")) == ["stable"]
    served = harnesses.served_harnesses(versions.values())
    assert served.canary is not None
    assert served.canary["version"] == canary
    assert offers(served.canary, "get")


def test_a_tool_is_rolled_back_on_both_tracks() -> None:
    versions: Versions = {}
    tools = [new_harness_tool(name="get", version="1"), new_harness_tool(name="other")]
    add(versions, "stable", instructions="Be brief.", tools=tools)
    add(versions, "canary", instructions="Be very brief.", tools=tools)
    assert run(versions, decision("rollback", "tools", "get@0")) == ["stable", "retired", "canary"]
    served = harnesses.served_harnesses(versions.values())
    for one in (served.stable, served.canary):
        assert one is not None
        assert [(tool["name"], tool["version"]) for tool in one["tools"]] == [("get", "0"), ("other", "")]


def test_a_refused_version_does_not_become_the_canary(versions: Versions) -> None:
    refused = add(
        versions, "proposed", instructions="Be very brief.", tools=[new_harness_tool(name="get", enabled=False)]
    )
    versions[refused] = harnesses.refuse(versions, refused)
    assert run(versions, decision("disable", "tools", "get")) == ["stable", "retired"]
    assert harnesses.served_harnesses(versions.values()).canary is None


def test_without_a_canary_one_record_does_it() -> None:
    versions: Versions = {}
    assert run(versions, decision("disable", "tools", "get")) == ["stable"]
    disable = decision("disable", "tools", "get")
    [undone] = undo_harness(disable, versions)
    assert undone["state"] == "retired"


def test_a_waiting_proposal_does_not_bring_a_disabled_tool_back() -> None:
    versions: Versions = {}
    log = DecisionLog()
    stable = add(versions, "stable", instructions="Be brief.")
    target = add(versions, "proposed", instructions="Be very brief.", parents=[stable])
    run(versions, decision("disable", "tools", "get"))
    canary = decision("canary", "skills", target)
    *made, act = acts.do(canary, Serving(ModelVersions(), versions), 2)
    versions.update({record.value["version"]: record.value for record in made})
    assert [record.value["state"] for record in made] == ["retired", "canary"]
    served = harnesses.served_harnesses(versions.values())
    assert served.canary is not None
    assert (served.canary["instructions"], served.canary["share"]) == ("Be very brief.", 0.3)
    assert not offers(served.canary, "get")
    assert versions[target]["state"] == "retired"  # or it would be tried again
    log.add(DECISIONS, canary)
    log.add(DECISION_ACTS, act.value)
    found = history_of(scope_of(canary), log, Serving(ModelVersions(), versions), owns_weights=False).canary
    assert found is not None
    assert (found.version, found.lever) == (served.canary["version"], "skills")
    assert [one["version"] for one in undo_harness(canary, {**versions})] == [found.version]
    assert run(versions, decision("promote", "prompt", found.version)) == ["stable"]
    assert not offers(harnesses.served_harnesses(versions.values()).stable, "get")


def test_a_proposal_keeps_its_own_changes_of_tools() -> None:
    versions: Versions = {}
    stable = add(versions, "stable", instructions="Be brief.")
    target = add(versions, "proposed", tools=[new_harness_tool(name="get", version="2")], parents=[stable], attempts=2)
    run(versions, decision("disable", "tools", "get"))
    assert run(versions, decision("canary", "prompt", target)) == ["canary"]
    served = harnesses.served_harnesses(versions.values())
    assert served.canary is not None
    assert served.canary["version"] == target


def test_a_proposal_whose_version_with_the_stable_tools_was_refused_is_not_tried() -> None:
    versions: Versions = {}
    stable = add(versions, "stable", instructions="Be brief.")
    target = add(versions, "proposed", instructions="Be very brief.", parents=[stable])
    refused = add(
        versions, "proposed", instructions="Be very brief.", tools=[new_harness_tool(name="get", enabled=False)]
    )
    versions[refused] = harnesses.refuse(versions, refused)
    run(versions, decision("disable", "tools", "get"))
    [act] = acts.do(decision("canary", "prompt", target), Serving(ModelVersions(), versions), 2)
    assert (act.value["state"], "was refused" in act.value["reason"]) == ("failed", True)


def test_a_replaced_canary_keeps_the_lever_that_began_it() -> None:
    versions: Versions = {}
    log = DecisionLog()
    target = add(versions, "proposed", instructions="Be very brief.")
    for one in (
        decision("canary", "skills", target),
        decision("disable", "tools", "get"),
        decision("disable", "tools", "put"),
    ):
        log.add(DECISIONS, one)
        *made, act = acts.do(one, Serving(ModelVersions(), versions), 2)
        versions.update({record.value["version"]: record.value for record in made})
        log.add(DECISION_ACTS, act.value)
    found = history_of(scope_of(one), log, Serving(ModelVersions(), versions), owns_weights=False).canary
    assert found is not None
    assert found.version != target
    assert found.lever == "skills"


def test_calls_of_a_disabled_tool_are_no_reason_to_disable_it_again(versions: Versions) -> None:
    rows = tuple(ToolRow(name, "timeout", Calls(1800, 36), Calls(120, 20)) for name in ("get", "put"))
    about = scope_of(decision("hold", "tools", ""))

    def found() -> list[str]:
        statistics = Statistics(Position("", 9), tools=rows)
        snapshot = snapshot_of(about, 9, 0, statistics, Serving(ModelVersions(), versions), History())
        return [one.target for one in diagnose(snapshot, History(), ControlPolicy())]

    assert found() == ["put"]
    run(versions, decision("disable", "tools", "put"))
    assert found() == ["get"]
    run(versions, decision("disable", "tools", "get"))
    assert found() == []


@pytest.fixture
def promoted() -> tuple[Versions, DecisionLog, list[str]]:
    """Return versions of which the second was promoted and then lost a tool, the log of this, and their names."""
    versions: Versions = {}
    log = DecisionLog()
    first = add(versions, "stable", instructions="Be brief.")
    second = add(versions, "canary", instructions="Be very brief.", parents=[first])
    for one in (decision("promote", "prompt", second), decision("disable", "tools", "get")):
        log.add(DECISIONS, one)
        *made, act = acts.do(one, Serving(ModelVersions(), versions), 2)
        versions.update({record.value["version"]: record.value for record in made})
        log.add(DECISION_ACTS, act.value)
    return versions, log, [first, second]


def check_first_serves_without_the_tool(versions: Versions, names: list[str]) -> None:
    stable = harnesses.served_harnesses(versions.values()).stable
    assert stable is not None
    assert (stable["instructions"], stable["parents"]) == ("Be brief.", names[:1])
    assert not offers(stable, "get")


def test_a_promotion_is_watched_and_rolled_back_also_after_a_change_of_a_tool(
    promoted: tuple[Versions, DecisionLog, list[str]],
) -> None:
    versions, log, names = promoted
    about = scope_of(decision("hold", "tools", ""))
    found = history_of(about, log, Serving(ModelVersions(), versions), owns_weights=False).promotion
    assert found is not None
    assert (found.version, found.parent, found.decision_id) == (names[1], names[0], f"promote {names[1]}")
    fall: Decision = {**decision("rollback", "prompt", found.parent), "rule": "change_after_promotion"}
    assert run(versions, fall) == ["retired", "retired", "stable"]
    check_first_serves_without_the_tool(versions, names)


def test_the_undo_of_a_promotion_takes_back_the_version_without_the_tool_too(
    promoted: tuple[Versions, DecisionLog, list[str]],
) -> None:
    versions, _, names = promoted
    for one in undo_harness(decision("promote", "prompt", names[1]), versions):
        versions[one["version"]] = one
    check_first_serves_without_the_tool(versions, names)
    for one in undo_harness(decision("canary", "prompt", names[0]), versions):
        versions[one["version"]] = one
    stable = harnesses.served_harnesses(versions.values()).stable
    assert stable is not None
    assert (stable["instructions"], offers(stable, "get")) == (None, False)


def test_a_change_of_a_tool_alone_is_no_promotion() -> None:
    versions: Versions = {}
    run(versions, decision("disable", "tools", "get"))
    about = scope_of(decision("hold", "tools", ""))
    assert history_of(about, DecisionLog(), Serving(ModelVersions(), versions), owns_weights=False).promotion is None
