"""The verifier `json_schema`, against the reference implementation."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator
from text_verifiers import create, value, verdict

from stepstream.jobs.verifiers.base import UnverifiableCase
from stepstream.jobs.verifiers.options import InvalidOptions

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=10,
)


@given(DOCUMENTS)
def test_a_document_fits_its_own_schema_only(document: Any) -> None:
    text = orjson.dumps(document).decode()
    assert value(create("json_schema"), text, schema={"const": document}) == 1
    assert value(create("json_schema"), text, schema={"not": {"const": document}}) == 0


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_json_schema(tmp_path: Path) -> None:
    (tmp_path / "trip.json").write_bytes(orjson.dumps(SCHEMA))
    fixed, own = create("json_schema", tmp_path, file="trip.json"), create("json_schema", pays="share")
    assert value(fixed, '{"city": "Bonn", "days": 2}') == 1
    assert verdict(fixed, '{"days": 0}').comment == "2 faults, against properties/days/minimum, required"
    assert verdict(fixed, "city: Bonn").category == "not_json"
    assert value(own, '{"days": 0}', schema=SCHEMA) == pytest.approx(1 / 3)
    assert value(own, '{"city": "Bonn"}', schema=SCHEMA) == 1


def test_formats_are_checked_only_on_request() -> None:
    schema = {"type": "string", "format": "date"}
    assert value(create("json_schema"), '"now"', schema=schema) == 1
    assert value(create("json_schema", formats=True), '"now"', schema=schema) == 0


@pytest.mark.parametrize(
    "schema",
    [{"properties": {"a": {"pattern": "(?=b)"}}}, {"patternProperties": {"(?!a)": {}}}, {"items": {"pattern": "("}}],
)
def test_a_pattern_that_re2_rejects_is_refused_at_load(schema: Any, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_bytes(orjson.dumps(schema))
    with pytest.raises(InvalidOptions, match="RE2 rejects the pattern"):
        create("json_schema", tmp_path, file="s.json")
    with pytest.raises(UnverifiableCase):
        verdict(create("json_schema"), "{}", schema=schema)


def test_the_format_regex_is_checked_by_re2() -> None:
    schema = {"items": {"format": "regex"}}
    assert value(create("json_schema", formats=True), '["(a|a)+$"]', schema=schema) == 1
    assert value(create("json_schema", formats=True), '["(?=a)"]', schema=schema) == 0
    assert value(create("json_schema", formats=True), '["a{1001}"]', schema=schema) == 0


def test_checking_a_document_takes_bounded_time() -> None:
    hard = orjson.dumps({"a" * 40 + "!": "a" * 5_000 + "!"}).decode()
    schema = {"patternProperties": {"^(a+)+!$": {"pattern": "^(a+)+$"}}}
    assert verdict(create("json_schema"), hard, schema=schema).category == "misfit"
    names = {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}
    assert verdict(create("json_schema"), hard, schema=names).category == "misfit"
    many = "[{}, [true], " + ", ".join(map(str, range(30_000))) + ", 0.0]"
    assert verdict(create("json_schema"), many, schema={"uniqueItems": True}).category == "misfit"
    nested = {"$ref": "#/$defs/list", "$defs": {"list": {"items": {"$ref": "#/$defs/list"}}}}
    assert verdict(create("json_schema"), "[" * 900 + "]" * 900, schema=nested).category == "too_deep"
    assert verdict(create("json_schema"), "[" * 9_000 + "]" * 9_000, schema=nested).category == "not_json"


@pytest.mark.parametrize(
    ("schema", "document", "fits"),
    [
        ({"uniqueItems": True}, [1, True, "1", [1], [True], {"a": 1}, {"a": True}, None, [], {}], True),
        ({"uniqueItems": True}, [{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ({"uniqueItems": False}, [1, 1], True),
        (
            {"additionalProperties": False, "properties": {"a": {}}, "patternProperties": {"^b": {}}},
            {"a": 1, "bc": 1},
            True,
        ),
        ({"additionalProperties": False, "properties": {"a": {}}, "patternProperties": {"^b": {}}}, {"cb": 1}, False),
        ({"additionalProperties": {"type": "string"}, "properties": {"a": {}}}, {"a": 1, "b": "c"}, True),
        ({"additionalProperties": {"type": "string"}, "properties": {"a": {}}}, {"a": 1, "b": 2}, False),
        ({"additionalProperties": False}, [1], True),
    ],
)
def test_replaced_keywords_agree_with_the_reference_implementation(schema: Any, document: Any, fits: bool) -> None:
    assert value(create("json_schema"), orjson.dumps(document).decode(), schema=schema) == fits
    assert Draft202012Validator(schema).is_valid(document) == fits


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"type": "thing"},
        {"$ref": "http://127.0.0.1:9/x.json"},
        {"patternProperties": {"(?=a)": {}}},
        {"allOf": [{"patternProperties": {"a": {}}}], "unevaluatedProperties": False},
    ],
)
def test_a_task_without_a_sound_schema_cannot_be_judged(schema: Any) -> None:
    with pytest.raises(UnverifiableCase):
        verdict(create("json_schema"), '{"a": 1}', schema=schema)
