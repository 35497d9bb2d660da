"""Test each compatibility level; the contract suite tests FULL_TRANSITIVE against real registries."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.registry.avro_text import canonical
from stepstream.services.registry.compatibility import DEFAULT_LEVEL, Level, incompatibilities, parse_level
from stepstream.services.registry.errors import RegistryError


def record(*fields: dict[str, Any], **more: Any) -> str:
    return canonical(json.dumps({"type": "record", "name": "R", "namespace": "n", "fields": list(fields), **more}))


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
B_DEFAULT = B | {"default": 0}
ONE, TWO, OPTIONAL = record(A), record(A, B), record(A, B_DEFAULT)


def allowed(required: Level, new: str, *earlier: str) -> bool:
    return not incompatibilities(required, new, list(enumerate(earlier, start=1)))


@pytest.mark.parametrize(
    ("required", "adds_required", "drops_required", "adds_optional"),
    [
        (Level.NONE, True, True, True),
        (Level.BACKWARD, False, True, True),
        (Level.FORWARD, True, False, True),
        (Level.FULL, False, False, True),
    ],
)
def test_each_level_checks_its_direction(
    required: Level, adds_required: bool, drops_required: bool, adds_optional: bool
) -> None:
    assert allowed(required, TWO, ONE) is adds_required
    assert allowed(required, ONE, TWO) is drops_required
    assert allowed(required, OPTIONAL, ONE) is adds_optional


@pytest.mark.parametrize("name", ["BACKWARD", "FORWARD", "FULL"])
def test_only_transitive_levels_check_all_earlier_versions(name: str) -> None:
    # v1 has a string under b, v2 has no b, v3 has an int there: fine with v2, not with v1.
    first = record(A, {"name": "b", "type": "string", "default": ""})
    assert allowed(Level(name), OPTIONAL, first, ONE)
    assert not allowed(Level(name + "_TRANSITIVE"), OPTIONAL, first, ONE)


def test_a_short_alias_names_a_type_of_the_same_namespace() -> None:
    renamed = canonical(
        json.dumps({"type": "record", "name": "New", "namespace": "n", "aliases": ["R"], "fields": [A]})
    )
    assert allowed(Level.BACKWARD, renamed, ONE)
    assert not allowed(Level.FORWARD, renamed, ONE)


def test_incompatibilities_name_version_and_place() -> None:
    (only,) = incompatibilities(Level.BACKWARD, TWO, [(7, ONE)])
    assert only == "cannot read version 7: reader_field_missing_default_value at /fields/1: b"


def test_a_recursive_schema_is_checked() -> None:
    tree = {"name": "children", "type": {"type": "array", "items": "R"}, "default": []}
    assert allowed(DEFAULT_LEVEL, record(A, tree, B_DEFAULT), record(A, tree))
    assert not allowed(DEFAULT_LEVEL, record(A, tree, B), record(A, tree))


def test_unknown_level() -> None:
    assert parse_level("full") is Level.FULL
    with pytest.raises(RegistryError, match="Invalid compatibility level 'SOME'") as caught:
        parse_level("SOME")
    assert caught.value.code == 42203


TYPES = st.sampled_from(["int", "long", "double", "string", "bytes", "null"])
FIELDS = st.lists(
    st.builds(
        lambda name, type_, optional: (
            {"name": name, "type": ["null", type_] if optional and type_ != "null" else type_}
            | ({"default": None} if optional else {})
        ),
        st.sampled_from("abc"),
        TYPES,
        st.booleans(),
    ),
    unique_by=lambda field: field["name"],
)
RECORDS = FIELDS.map(lambda fields: record(*fields))


@given(RECORDS, RECORDS)
def test_full_is_backward_and_forward_and_mirrors(new: str, old: str) -> None:
    backward, forward = allowed(Level.BACKWARD, new, old), allowed(Level.FORWARD, new, old)
    assert allowed(Level.FULL, new, old) is (backward and forward)
    assert allowed(Level.FORWARD, old, new) is backward


@given(RECORDS)
def test_every_schema_is_compatible_with_itself(schema: str) -> None:
    assert allowed(Level.FULL_TRANSITIVE, schema, schema)
