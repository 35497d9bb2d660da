"""A search finds the same records with an index in any state, and with none."""

import copy
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_log import MemoryIndex, MemoryLog
from stream_records import make_feedback, make_steps

from stepstream.jobs.erasure import update_index
from stepstream.jobs.erasure.find_records import Search, SearchIndex, add_by_trajectory, add_event, find_records
from stepstream.jobs.erasure.findings import Findings, Person
from stepstream.jobs.erasure.owner_hashes import hash_basis
from stepstream.jobs.erasure.read_log import INDEXED, Log
from stepstream.jobs.erasure.selection import IndexRow, Match, Selection, covered_until
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event

NO_CODEC = cast(Codec, None)
KEYS_OF = {("acme", "ann"): {"k1"}, ("acme", "bob"): {"k2"}, ("globex", "ann"): {"k3"}}
"""Two tenants have a person of the same name."""
ENTRIES = st.tuples(
    st.sampled_from(INDEXED),
    st.sampled_from([0, 1]),
    st.sampled_from(["acme", "globex"]),
    st.sampled_from(["t", "u"]),
    st.sampled_from([None, "ann", "bob", "eve"]),
    st.sampled_from([None, "k1", "k2", "k3", "k1+k2", "k4"]),
    st.sampled_from([True, True, True, False]),
)


def log_of(entries: list[Any]) -> list[Event]:
    """Return records in the order of the entries; a label holds the first governed step of its trajectory."""
    events: list[Event] = []
    ends: dict[tuple[str, int], int] = {}
    for number, (topic, partition, tenant, trajectory, user, key, readable) in enumerate(entries):
        if topic.endswith("feedback"):
            record: Any = make_feedback(trajectory, number=number, user=user, comment="text")
        else:
            record = make_steps(trajectory, 1, user=user)[0] | {"event_id": f"{topic}{number}"}
        record |= {"seal_key": key, "tenant": tenant}
        if topic == "labeled-trajectories":
            steps = [e.record for e in events if e.topic == "governed-steps" and e.record is not None]
            held = [step for step in steps if (step["tenant"], step["trajectory_id"]) == (tenant, trajectory)]
            record |= {"steps": [step | {"tool_calls": []} for step in held[:1]], "sequences": ["s"]}
            record |= {"conversations": []}
        offset = ends.get((topic, partition), 0)
        ends[topic, partition] = offset + 1 + number % 2  # markers of transactions lie between
        value = b"" if readable else str(user).encode()
        events.append(Event(topic, partition, offset, "", record if readable else None, None, value))
    return events


def subject(tenant: str, user: str) -> str:
    return f"{tenant}/{user}"


def new_searches(persons: list[tuple[str, str]]) -> list[Search]:
    every = {key for keys in KEYS_OF.values() for key in keys} | {"k4"}
    return [
        Search(
            Person(*person),
            Findings(set(KEYS_OF[person]), requested_key_ids=set(KEYS_OF[person])),
            every - KEYS_OF[person],
        )
        for person in persons
    ]


def scan(log: MemoryLog, persons: list[tuple[str, str]]) -> list[Findings]:
    """Read everything twice, without an index."""
    searches = new_searches(persons)
    events = [event for topic in INDEXED for event in log.events if event.topic == topic and event.offset >= log.first]
    for event in events:
        for search in searches:
            add_event(search.found, search.person, event, NO_CODEC)
    for event in events:
        for search in searches:
            add_by_trajectory(search.found, search.person, event, search.other_key_ids)
    return [search.found for search in searches]


def find(log: MemoryLog, index: MemoryIndex, persons: list[tuple[str, str]]) -> list[Findings]:
    searches = new_searches(persons)
    find_records(cast(Log, log), index, subject, searches, lambda _: None)
    return [search.found for search in searches]


@pytest.fixture(autouse=True)
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_index, "_RECORDS_IN_A_ROW", 2)


@given(
    st.lists(ENTRIES, max_size=14),
    st.lists(st.sampled_from(list(KEYS_OF)), min_size=1, max_size=3, unique=True),
    st.data(),
)
def test_a_search_finds_the_same_with_an_index_in_any_state(
    entries: list[Any], persons: list[tuple[str, str]], data: st.DataObject
) -> None:
    """The index lags, lost rows, has rows twice and in any order; the log lost its oldest or its newest records."""
    events = log_of(entries)
    length = data.draw(st.integers(0, len(events)))
    index = MemoryIndex()
    find(MemoryLog(events[:length], NO_CODEC), index, persons)
    index.rows = data.draw(st.lists(st.sampled_from(index.rows), max_size=12)) if index.rows else []
    log = MemoryLog(events, NO_CODEC, first=data.draw(st.integers(0, 3)))
    assert find(log, index, persons) == scan(log, persons)
    complete = copy.deepcopy(index)
    assert find(log, complete, persons) == scan(log, persons), "and again, with the complete index"


@given(st.lists(ENTRIES, min_size=1, max_size=10), st.lists(ENTRIES, max_size=10))
def test_an_index_beyond_the_end_of_the_log_is_built_anew(first: list[Any], second: list[Any]) -> None:
    """The log lost its newest records, and has others at their offsets."""
    index, persons = MemoryIndex(), list(KEYS_OF)
    find(MemoryLog(log_of(first), NO_CODEC), index, persons)
    ends = MemoryLog(log_of(first), NO_CODEC).offset_ranges(INDEXED)
    log = MemoryLog(log_of(second), NO_CODEC)
    now = log.offset_ranges(INDEXED)
    for place in [place for place, (_, end) in ends.items() if now.get(place, (0, 0))[1] >= end]:
        index.forget(place, ends[place][1])  # these look the same: Kafka does not say so
    assert find(log, index, persons) == scan(log, persons)


def test_a_complete_index_leaves_the_records_of_others_unread() -> None:
    entries: list[Any] = [("governed-steps", 0, "acme", f"t{n}", None, "k4", True) for n in range(50)]
    entries += [
        ("governed-steps", 0, "acme", "mine", None, "k1", True),
        ("feedback", 1, "acme", "mine", None, None, True),
    ]
    index, log = MemoryIndex(), MemoryLog(log_of(entries), NO_CODEC)
    [first] = find(log, index, [("acme", "ann")])
    assert log.indexed == 52
    log.indexed = log.selected = 0
    [again] = find(log, index, [("acme", "ann")])
    assert (again, log.indexed) == (first, 0)
    assert log.selected == 3, "the step by its key, then step and feedback by their trajectory"
    log.events += log_of(entries + entries)[52:]
    find(log, index, [("acme", "ann")])
    assert log.indexed == 52, "the new records alone"


def test_an_index_that_stores_nothing_loses_nothing() -> None:
    class Forgetful(MemoryIndex):
        def add(self, row: IndexRow) -> None:
            """Lose the row."""

    log = MemoryLog(log_of([("steps", 0, "acme", "t", "ann", None, True)]), NO_CODEC)
    assert find(log, Forgetful(), [("acme", "ann")]) == scan(log, [("acme", "ann")])
    assert log.selected == 2


def test_the_index_covers_a_partition_up_to_its_first_gap() -> None:
    rows = [Match("steps", 0, 20, 30, ()), Match("steps", 0, 5, 12, ()), Match("steps", 0, 12, 18, ())]
    assert covered_until({("steps", 0): (7, 40), ("steps", 1): (3, 9)}, rows) == {("steps", 0): 18, ("steps", 1): 3}


def test_offsets_that_lie_close_together_are_read_in_one_run() -> None:
    bounds = {("steps", 0): (0, 10_000), ("steps", 1): (0, 9)}
    matches = [Match("steps", 0, 0, 9_000, [3, 100, 5_000]), Match("steps", 1, 0, 9, [])]
    selection = Selection.of(bounds, [matches])
    assert list(selection.runs("steps")) == [
        {("steps", 0): (3, 101)},
        {("steps", 0): (5_000, 5_001)},
        {("steps", 0): (9_000, 10_000)},
    ]
    assert selection.size() == 1_003
    assert [selection.contains("steps", 0, offset) for offset in (3, 4, 9_500)] == [True, False, True]


def test_rows_rest_on_the_topic_and_on_the_key_of_the_digests() -> None:
    assert len({hash_basis("a", "d"), hash_basis("b", "d"), hash_basis("a", "e")}) == 3


def test_one_search_index_for_all_persons_names_all_owners() -> None:
    assert len(SearchIndex(new_searches(list(KEYS_OF))).owners(subject)) == 1 + 3 + 3
