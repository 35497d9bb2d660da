"""Test that equal schemas have one canonical text, and invalid ones are rejected."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.schemas import names, schema_text
from stepstream.services.registry.avro_text import canonical, normalised
from stepstream.services.registry.errors import RegistryError

STEP = """
{
  "namespace": "shop", "name": "Step", "type": "record", "doc": "one round",
  "fields": [
    {"type": {"type": "string"}, "name": "task", "doc": "what"},
    {"default": null, "name": "reward", "type": ["null", {"type": "double"}]},
    {"name": "kind", "type": {"symbols": ["A", "B"], "type": "enum", "name": "Kind", "default": "A"}, "default": "A"}
  ]
}
"""


def test_canonical_text_keeps_docs_and_defaults_and_drops_wrapping() -> None:
    assert json.loads(canonical(STEP)) == {
        "type": "record",
        "name": "Step",
        "namespace": "shop",
        "doc": "one round",
        "fields": [
            {"name": "task", "type": "string", "doc": "what"},
            {"name": "reward", "type": ["null", "double"], "default": None},
            {
                "name": "kind",
                "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"], "default": "A"},
                "default": "A",
            },
        ],
    }


def test_different_docs_make_different_schemas() -> None:
    assert canonical(STEP) != canonical(STEP.replace("one round", "another"))
    assert canonical(STEP) != canonical(STEP.replace('"default": null,', ""))


def test_a_wrapped_looking_default_is_left_alone() -> None:
    text = json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "m", "type": {"type": "map", "values": "string"}, "default": {"type": "string"}}],
        }
    )
    assert json.loads(canonical(text))["fields"][0]["default"] == {"type": "string"}


@pytest.mark.parametrize("text", ['"string"', "string", '{"type":"string"}', '{"type":{"type":"string"}}'])
def test_a_primitive_has_one_text(text: str) -> None:
    assert canonical(text) == '"string"'


def test_normalised_names_are_full() -> None:
    inside = {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": "int", "order": "ascending"}]}
    short = {
        "type": "record",
        "name": "Outer",
        "namespace": "a.b",
        "aliases": ["Old"],
        "fields": [{"name": "i", "type": inside}, {"name": "j", "type": ["null", "Inner"]}],
    }
    full = {
        "type": "record",
        "name": "a.b.Outer",
        "aliases": ["a.b.Old"],
        "fields": [
            {"name": "i", "type": {"type": "record", "name": "a.b.Inner", "fields": [{"name": "n", "type": "int"}]}},
            {"name": "j", "type": ["null", "a.b.Inner"]},
        ],
    }
    assert json.loads(normalised(json.dumps(short))) == full
    assert canonical(json.dumps(short)) != canonical(json.dumps(full))
    assert normalised(json.dumps(short)) == normalised(json.dumps(full))


def test_a_type_without_namespace_stays_so_inside_another() -> None:
    inner = {"type": "enum", "name": "E", "namespace": "", "symbols": ["A"]}
    outer = {"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "e", "type": inner}]}
    assert json.loads(normalised(json.dumps(outer)))["fields"][0]["type"] == inner


@pytest.mark.parametrize("name", names())
def test_stepstreams_schemas_keep_their_meaning(name: str) -> None:
    text = canonical(schema_text(name))
    assert canonical(text) == text
    assert normalised(normalised(text)) == normalised(text)


def shuffled(draw: st.DrawFn, node: Any) -> Any:
    if isinstance(node, dict):
        return {name: shuffled(draw, node[name]) for name in draw(st.permutations(list(node)))}
    if isinstance(node, list):
        return [shuffled(draw, item) for item in node]
    return {"type": node} if node in ("string", "double") and draw(st.booleans()) else node


@given(st.data(), st.sampled_from([None, 1, 4]))
def test_formatting_and_order_of_attributes_do_not_matter(data: st.DataObject, indent: int | None) -> None:
    other = data.draw(st.composite(lambda draw: shuffled(draw, json.loads(canonical(STEP))))())
    assert canonical(json.dumps(other, indent=indent)) == canonical(STEP)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"type":"record","fields":[]}', "has no name"),
        ('{"type":"record","name":"R"}', "fields"),
        ('{"type":"enum","name":"E","symbols":"AB"}', "must be a list"),
        ('{"type":"nothing"}', "nothing"),
        ("3", "3"),
        ('"unknown"', "unknown"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}', "already"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}', "default 'x'"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"],"default":1.5}]}', "default 1.5"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "B"),
    ],
)
def test_the_error_names_the_invalid_part(text: str, why: str) -> None:
    with pytest.raises(RegistryError, match=why) as caught:
        canonical(text)
    assert (caught.value.status, caught.value.code) == (422, 42201)


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        ("null", [None], [0]),
        ("boolean", [True], [1]),
        ("int", [0, -(2**31)], [2**31, True, 1.0]),
        ("long", [2**40], [2**63]),
        ("float", [1, 0.5], ["1"]),
        ("string", ["", "a"], [1]),
        ("bytes", ["\u00ff"], [None]),
        ({"type": "fixed", "name": "F", "size": 2}, ["ab"], ["abc"]),
        ({"type": "array", "items": "int"}, [[], [1]], [[None], {}]),
        ({"type": "map", "values": "int"}, [{}, {"a": 1}], [[], {"a": "b"}]),
        (["null", "string"], [None, "x"], [1]),
        (
            {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]},
            [{"a": 1}],
            [{}, {"a": "x"}],
        ),
    ],
)
def test_defaults_are_values_of_their_type(type_: Any, good: list[Any], bad: list[Any]) -> None:
    def text(default: Any) -> str:
        field = {"name": "f", "type": type_, "default": default}
        return json.dumps({"type": "record", "name": "R", "fields": [field]})

    for value in good:
        canonical(text(value))
    for value in bad:
        with pytest.raises(RegistryError, match="is not a value of its type"):
            canonical(text(value))
