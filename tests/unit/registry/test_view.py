"""Test the fold, and the rules of ids and versions, over random histories of writes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from stepstream.services.registry import writes
from stepstream.services.registry.avro_text import canonical
from stepstream.services.registry.compatibility import Level
from stepstream.services.registry.errors import RegistryError
from stepstream.services.registry.records import (
    ConfigKey,
    DeleteKey,
    IdKey,
    Key,
    RecordError,
    RegistryRecord,
    SchemaKey,
    SchemaValue,
    decode,
    encode,
)
from stepstream.services.registry.view import Fold, View
from stepstream.services.registry.writes import Write

SUBJECTS = ("a", "b")
SCHEMAS = tuple(
    canonical(json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": "int", "default": 0}]}))
    for name in "xyz"
)


def facts(view: View) -> Any:
    """Return everything that a view answers."""
    levels = [view.level(subject) for subject in (None, *SUBJECTS)]
    return list(view.all_versions()), view.schemas, view.ids, view.last_id, levels, view.subjects()


def folded(records: Sequence[tuple[int, RegistryRecord]]) -> View:
    fold = Fold()
    for offset, (key, value) in records:
        fold.apply(offset, key, value)
    return fold.view()


@dataclass
class Step:
    """One random request, decided on the current view."""

    name: str
    decide: Callable[[View], Write]


subjects, schemas, flags = st.sampled_from(SUBJECTS), st.sampled_from(SCHEMAS), st.booleans()
requests = st.one_of(
    st.builds(
        lambda s, text: Step("register", lambda view: writes.register(view, s, text, normalize=False)),
        subjects,
        schemas,
    ),
    st.builds(
        lambda s, p: Step("delete subject", lambda view: writes.delete_subject(view, s, permanent=p)), subjects, flags
    ),
    st.builds(
        lambda s, n, p: Step("delete version", lambda view: writes.delete_version(view, s, n, permanent=p)),
        subjects,
        st.sampled_from([None, 1, 2]),
        flags,
    ),
    st.builds(
        lambda s, level: Step("set level", lambda view: writes.set_level(view, s, level)),
        st.sampled_from([None, *SUBJECTS]),
        st.sampled_from(Level),
    ),
    st.builds(
        lambda s: Step("unset level", lambda view: writes.unset_level(view, s)), st.sampled_from([None, *SUBJECTS])
    ),
)


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, RegistryRecord]]:
    """The log after a random history of requests; offsets have gaps, as transactions leave them."""
    log: list[tuple[int, RegistryRecord]] = []
    for step in draw(st.lists(requests, max_size=25)):
        try:
            write = step.decide(folded(log))
        except RegistryError:
            continue
        start = log[-1][0] + 2 if log else 0
        log += [(start + index, record) for index, record in enumerate(write.records)]
    return log


def compacted(log: Sequence[tuple[int, RegistryRecord]], clean_until: int) -> list[tuple[int, RegistryRecord]]:
    """Return a log as Kafka may compact it: below the mark the last value of each key, tombstones kept or dropped."""
    last: dict[Key, int] = {record[0]: offset for offset, record in log}
    return [
        (offset, record)
        for offset, record in log
        if offset >= clean_until or (last[record[0]] == offset and record[1] is not None)
    ]


@given(logs())
def test_a_replay_gives_the_same_view(log: list[tuple[int, RegistryRecord]]) -> None:
    fold = Fold()
    for offset, (key, value) in log:
        fold.apply(offset, key, value)
        fold.view()
    assert facts(fold.view()) == facts(folded(log))


@given(logs(), st.data())
def test_a_redelivery_changes_nothing(log: list[tuple[int, RegistryRecord]], data: st.DataObject) -> None:
    again: list[tuple[int, RegistryRecord]] = []
    for index, record in enumerate(log):
        again += [record, *log[data.draw(st.integers(0, index)) : index + 1]]
    assert facts(folded(again)) == facts(folded(log))


@given(logs(), st.integers(0, 60))
def test_compaction_changes_nothing(log: list[tuple[int, RegistryRecord]], clean_until: int) -> None:
    assert facts(folded(compacted(log, clean_until))) == facts(folded(log))


@given(logs())
def test_an_id_never_means_two_schemas(log: list[tuple[int, RegistryRecord]]) -> None:
    meaning: dict[int, str] = {}
    for _, (key, value) in log:
        if isinstance(key, SchemaKey) and isinstance(value, SchemaValue):
            assert meaning.setdefault(value.id, value.schema) == value.schema
    view = folded(log)
    assert view.last_id >= max(meaning, default=0)
    assert all(view.schemas[view.ids[text]] == text for text in view.ids)


@given(logs(), subjects, schemas)
def test_registering_a_schema_twice_changes_nothing(
    log: list[tuple[int, RegistryRecord]], subject: str, schema: str
) -> None:
    try:
        first = writes.register(folded(log), subject, schema, normalize=False)
    except RegistryError:  # The level refuses it.
        reject()
    longer = [*log, *[(1000 + index, record) for index, record in enumerate(first.records)]]
    view = folded(longer)
    assert writes.register(view, subject, schema, normalize=False) == Write(first.answer)
    assert writes.register(view, "elsewhere", schema, normalize=False).answer == first.answer
    assert view.schemas[first.answer["id"]] == schema


@given(logs())
def test_encoded_records_decode_to_themselves(log: list[tuple[int, RegistryRecord]]) -> None:
    assert [decode(*encode(*record)) for _, record in log] == [record for _, record in log]


def test_a_new_version_follows_softly_deleted_ones() -> None:
    log: list[tuple[int, RegistryRecord]] = [
        (0, (SchemaKey("a", 1), SchemaValue(5, SCHEMAS[0]))),
        (1, (DeleteKey("a"), 1)),
    ]
    view = folded(log)
    assert view.subjects() == []
    assert view.subjects(deleted=True) == ["a"]
    write = writes.register(view, "a", SCHEMAS[0], normalize=False)
    assert write == Write({"id": 5}, [(SchemaKey("a", 2), SchemaValue(5, SCHEMAS[0]))])


def test_the_highest_id_is_not_reused_after_a_permanent_delete() -> None:
    view = folded([(0, (SchemaKey("a", 1), SchemaValue(9, SCHEMAS[0], deleted=True)))])
    deletion = writes.delete_subject(view, "a", permanent=True)
    after = folded([(index, record) for index, record in enumerate(deletion.records)])
    assert writes.register(after, "b", SCHEMAS[1], normalize=False).answer == {"id": 10}


def test_keys_equal_confluents() -> None:
    assert encode(SchemaKey("s", 3), SchemaValue(7, '"int"')) == (
        b'{"keytype":"SCHEMA","subject":"s","version":3,"magic":1}',
        b'{"subject":"s","version":3,"id":7,"schema":"\\"int\\"","deleted":false}',
    )
    assert encode(ConfigKey(None), Level.FULL) == (
        b'{"keytype":"CONFIG","subject":null,"magic":0}',
        b'{"compatibilityLevel":"FULL"}',
    )
    assert encode(DeleteKey("s"), 3) == (
        b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
        b'{"subject":"s","version":3}',
    )
    assert encode(IdKey(), None) == (b'{"keytype":"ID","magic":0}', None)


def test_other_records_are_ignored_or_rejected() -> None:
    assert decode(b'{"keytype":"NOOP","magic":0}', None) is None
    protobuf = b'{"subject":"s","version":1,"id":1,"schemaType":"PROTOBUF","schema":"","deleted":false}'
    for key, value in [
        (None, None),
        (b"\xff", b"{}"),
        (b"[]", b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', protobuf),
        (b'{"keytype":"CONFIG","subject":null}', b'{"compatibilityLevel":"SOME"}'),
    ]:
        with pytest.raises(RecordError):
            decode(key, value)
