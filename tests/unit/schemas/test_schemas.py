"""The schema files keep the rules that every schema of ours obeys."""

import json

import fastavro
import pytest

from stepstream.schemas import SchemaError, names, schema, schema_text
from stepstream.schemas.loader import source


@pytest.mark.parametrize("name", names())
def test_every_type_parses_on_its_own_as_a_registry_would_get_it(name: str) -> None:
    fastavro.parse_schema(json.loads(schema_text(name)))


@pytest.mark.parametrize("name", names())
def test_every_type_and_field_says_what_it_means(name: str) -> None:
    definition = source(name)
    assert definition["name"] == name
    assert definition["doc"].endswith(".")
    for field in definition.get("fields", []):
        assert field["doc"].endswith("."), f"{name}.{field['name']}"


@pytest.mark.parametrize("name", [n for n in names() if source(n)["type"] == "enum"])
def test_enums_are_closed_sets_with_a_default_for_readers_that_do_not_know_a_symbol(name: str) -> None:
    assert source(name)["default"] in source(name)["symbols"]


@pytest.mark.parametrize("name", [n for n in names() if source(n)["type"] == "record"])
def test_what_may_be_null_is_null_by_default(name: str) -> None:
    for field in source(name)["fields"]:
        if isinstance(field["type"], list):
            assert field["type"][0] == "null", f"{name}.{field['name']}"
            assert field["default"] is None, f"{name}.{field['name']}"


def test_shared_types_are_written_out_once() -> None:
    text = schema_text("LabeledTrajectory")
    assert text.count('"name": "RewardComponent"') == 1


def test_a_type_without_a_file_is_named() -> None:
    with pytest.raises(SchemaError, match=r"'Stpe'.*Step"):
        schema("Stpe")
