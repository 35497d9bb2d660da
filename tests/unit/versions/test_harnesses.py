"""Test harness versions: identity by content, what serves an agent in any order of records, and each decision."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.topics.events import Harness, new_harness, new_harness_tool
from stepstream.versions import harnesses
from stepstream.versions.harness_file import InvalidHarness, read_harness
from stepstream.versions.harnesses import HarnessRefused, ServedHarnesses, served_harnesses

Versions = dict[str, Harness]
VERSION_BEFORE = "dfd111a77a6c0926"
"""Version of the instructions "be brief" before harnesses had `examples_shown`."""


def content(text: str, **fields: Any) -> Harness:
    return new_harness(event_id="", occurred_at_us=0, tenant="t", agent="a", version="", instructions=text, **fields)


def add(versions: Versions, record: Harness) -> str:
    versions[record["version"]] = record
    return record["version"]


def proposed(versions: Versions, text: str, **fields: Any) -> str:
    return add(versions, harnesses.propose(versions, content(text, **fields)))


def serving(versions: Versions) -> tuple[str | None, str | None]:
    served = served_harnesses(versions.values())
    stable, canary = served.stable, served.canary
    return (stable and stable["version"]), (canary and canary["version"])


def test_the_version_is_the_content_and_nothing_else() -> None:
    one, same = content("be brief"), content("be brief", proposer="p", reason="r", share=0.3)
    assert harnesses.version_of(one) == harnesses.version_of(same)
    others = [content("be long"), content("be brief", attempts=2), content("be brief", model="m")]
    others.append(content("be brief", tools=[new_harness_tool(name="search", enabled=False)]))
    assert len({harnesses.version_of(each) for each in (one, *others)}) == 5
    changed = harnesses.part_digests(others[1])
    same_parts = {part for part, digest in harnesses.part_digests(one).items() if changed[part] == digest}
    assert same_parts == {"instructions", "examples", "tools", "model"}


def test_a_version_of_an_earlier_release_keeps_its_name() -> None:
    assert harnesses.version_of(content("be brief")) == VERSION_BEFORE
    assert harnesses.version_of(content("be brief", examples_shown=2)) != VERSION_BEFORE


def test_a_version_goes_from_proposal_to_canary_to_stable_and_back() -> None:
    versions: Versions = {}
    first, second = proposed(versions, "one"), proposed(versions, "two")
    assert serving(versions) == (None, None)
    add(versions, harnesses.promote(versions, first))
    add(versions, harnesses.start_canary(versions, second, 0.25))
    assert serving(versions) == (first, second)
    add(versions, harnesses.promote(versions, second))
    assert serving(versions) == (second, None)
    add(versions, harnesses.take_back(versions))
    assert (serving(versions), versions[second]["state"]) == ((first, None), "retired")
    add(versions, harnesses.take_back(versions))
    assert serving(versions) == (None, None)


def test_a_rollback_takes_the_canary_first_or_the_named_version() -> None:
    versions: Versions = {}
    first, second = proposed(versions, "one"), proposed(versions, "two")
    add(versions, harnesses.promote(versions, first))
    add(versions, harnesses.start_canary(versions, second, 0.5))
    assert harnesses.take_back(versions)["version"] == second
    assert harnesses.take_back(versions, first)["version"] == first
    with pytest.raises(HarnessRefused, match="does not serve"):
        harnesses.take_back(versions, "other")


def test_a_pinned_version_serves_alone_until_it_is_unpinned() -> None:
    versions: Versions = {}
    first, second = proposed(versions, "one"), proposed(versions, "two")
    add(versions, harnesses.promote(versions, first))
    add(versions, harnesses.start_canary(versions, second, 0.5))
    add(versions, harnesses.pin(versions, first))
    assert serving(versions) == (first, None)
    for decide in (harnesses.promote, lambda v, name: harnesses.start_canary(v, name, 0.5)):
        with pytest.raises(HarnessRefused, match="is pinned: unpin it first"):
            decide(versions, second)
    with pytest.raises(HarnessRefused, match="is pinned: unpin it first"):
        harnesses.take_back(versions)
    add(versions, harnesses.pin(versions, first, pinned=False))
    assert serving(versions) == (first, second)


@pytest.mark.parametrize(
    ("decide", "fault"),
    [
        (lambda v, one, two: harnesses.propose(v, content("one")), "exists in state stable"),
        (lambda v, one, two: harnesses.propose(v, new_harness(**content("x") | {"instructions": None})), "nothing"),
        (lambda v, one, two: harnesses.propose(v, content("new", parents=["unknown"])), "unknown; known: "),
        (lambda v, one, two: harnesses.promote(v, one), "is the stable one already"),
        (lambda v, one, two: harnesses.promote(v, two), "was refused: bad; propose another"),
        (lambda v, one, two: harnesses.start_canary(v, two, 0.5), "was refused"),
        (lambda v, one, two: harnesses.start_canary(v, one, 1.5), r"the share 1.5 is not in \(0, 1\]"),
        (lambda v, one, two: harnesses.refuse(v, one), "is stable, and no proposal"),
        (lambda v, one, two: harnesses.pin(v, two), "is not the stable one"),
        (lambda v, one, two: harnesses.lineage(v, "unknown"), "is unknown"),
    ],
)
def test_an_impossible_decision_is_refused_with_its_remedy(decide: Callable[..., Any], fault: str) -> None:
    versions: Versions = {}
    one, two = proposed(versions, "one"), proposed(versions, "two")
    add(versions, harnesses.promote(versions, one))
    add(versions, {**harnesses.refuse(versions, two), "reason": "bad"})
    with pytest.raises(HarnessRefused, match=fault):
        decide(versions, one, two)


def test_the_lineage_lists_each_ancestor_once() -> None:
    versions: Versions = {}
    root = proposed(versions, "root")
    left, right = (proposed(versions, text, parents=[root]) for text in ("left", "right"))
    child = proposed(versions, "child", parents=[left, right])
    assert [one["version"] for one in harnesses.lineage(versions, child)] == [child, left, right, root]


@given(st.data())
def test_any_order_of_the_records_and_any_decisions_serve_the_same(data: st.DataObject) -> None:
    versions: Versions = {}
    names = [proposed(versions, text) for text in "abc"]
    for _ in range(data.draw(st.integers(0, 8))):
        name = data.draw(st.sampled_from(names))
        decide = data.draw(
            st.sampled_from(
                [
                    lambda n: harnesses.promote(versions, n),
                    lambda n: harnesses.start_canary(versions, n, 0.5),
                    lambda n: harnesses.take_back(versions),
                    lambda n: harnesses.pin(versions, n),
                    lambda n: harnesses.pin(versions, n, pinned=False),
                ]
            )
        )
        try:
            add(versions, decide(name))
        except HarnessRefused:
            continue
        served = served_harnesses(versions.values())
        assert served_harnesses(data.draw(st.permutations(list(versions.values())))) == served
        assert served.canary is None or served.canary != served.stable


def test_the_share_of_trajectories_gets_the_canary_and_a_larger_one_only_adds() -> None:
    stable, canary = content("s"), content("c", share=0.2)
    names = [f"trajectory {number}" for number in range(2000)]
    chosen = {name for name in names if ServedHarnesses(stable, canary).of(name)[0] == "canary"}
    assert 0.17 < len(chosen) / len(names) < 0.23
    larger = ServedHarnesses(stable, {**canary, "share": 0.5})
    assert chosen < {name for name in names if larger.of(name) == ("canary", larger.canary)}


def test_a_file_gives_the_content_that_was_exported() -> None:
    call = {"call_id": "1", "name": "search", "arguments": "{}"}
    example = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}]}
    file = {"instructions": "be brief", "examples": [example], "tools": [{"name": "search", "description": "finds"}]}
    first = content("") | read_harness(orjson.dumps(file))
    exported = {part: first[part] for part in harnesses.PARTS}
    second = content("") | read_harness(orjson.dumps(exported))
    assert harnesses.version_of(first) == harnesses.version_of(second)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"[", "not JSON"),
        (b'{"instruction": "x"}', "instruction: Extra inputs are not permitted; the fields are instructions"),
        (b'{"attempts": 0}', "attempts: Input should be greater than or equal to 1"),
        (b'{"tools": [{"name": "a"}, {"name": "a"}]}', "tools: a twice"),
        (b'{"examples": [{"messages": []}]}', "examples.0.messages"),
        (b'{"instructions": "' + b"x" * 10_000_000 + b'"}', "of at most 1000000 bytes; it has 100"),
    ],
)
def test_a_wrong_file_is_refused_with_its_field(text: bytes, fault: str) -> None:
    with pytest.raises(InvalidHarness, match=fault):
        read_harness(text)
