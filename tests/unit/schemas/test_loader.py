"""Every schema file follows the rules of Stepstream's schemas."""

import json

import fastavro
import pytest

from stepstream.schemas import SchemaError, names, schema, schema_text
from stepstream.schemas.loader import source


@pytest.mark.parametrize("name", names())
def test_every_registered_text_parses_on_its_own(name: str) -> None:
    fastavro.parse_schema(json.loads(schema_text(name)))


@pytest.mark.parametrize("name", names())
def test_every_type_and_field_has_a_sentence(name: str) -> None:
    definition = source(name)
    assert definition["name"] == name
    assert definition["doc"].endswith(".")
    for field in definition.get("fields", []):
        assert field["doc"].endswith("."), f"{name}.{field['name']}"


@pytest.mark.parametrize("name", [n for n in names() if source(n)["type"] == "enum"])
def test_enums_have_a_default_for_unknown_symbols(name: str) -> None:
    assert source(name)["default"] in source(name)["symbols"]


@pytest.mark.parametrize("name", [n for n in names() if source(n)["type"] == "record"])
def test_nullable_fields_default_to_null(name: str) -> None:
    for field in source(name)["fields"]:
        if isinstance(field["type"], list):
            assert field["type"][0] == "null", f"{name}.{field['name']}"
            assert field["default"] is None, f"{name}.{field['name']}"


def test_a_shared_type_is_defined_once() -> None:
    text = schema_text("LabeledTrajectory")
    assert text.count('"name": "RewardComponent"') == 1


def test_the_error_names_a_missing_type() -> None:
    with pytest.raises(SchemaError, match=r"'Stpe'.*Step"):
        schema("Stpe")
