"""Errors about invalid records contain nothing of their content."""

import struct
from types import SimpleNamespace
from typing import Any

import fastavro
import orjson
import pytest
from confluent_kafka.schema_registry import Schema
from sample_records import step

from stepstream.config import Settings
from stepstream.topics.codec import Codec, CodecError, Malformed, Unencodable, UnsupportedSchema
from stepstream.topics.empty_items import has_empty_items, is_recursive
from stepstream.topics.encoded_array import EncodedArray
from stepstream.topics.events import new_message, new_sampling

SECRET = "AKIAIOSFODNN7EXAMPLE"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sampling": {**new_sampling(), "max_tokens": f"'{SECRET}' do not match x"}}, "on field max_tokens"),
        ({"sampling": {**new_sampling(), "max_tokens": {"a": SECRET}}}, "on field max_tokens"),
        ({"response": SECRET}, "no value and no default for role"),
        ({"response": new_message(role="assistant", content=f"{SECRET} \ud83d")}, "surrogates not allowed"),
        ({"consent": SECRET}, "is not in list"),
    ],
)
def test_an_encoding_error_hides_the_content(fields: Any, message: str) -> None:
    with pytest.raises(Unencodable, match=message) as raised:
        Codec(Settings()).body("steps", step(**fields))
    assert SECRET not in str(raised.value)


def test_a_decoding_error_hides_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec(Settings())
    monkeypatch.setattr(codec, "_look_up_writer", lambda schema_id: codec._parsed["steps"])
    body = codec.body("steps", step(response=new_message(role="assistant", content=f"{SECRET} XX")))
    with pytest.raises(Malformed, match="invalid start byte") as raised:
        codec.decode("steps", struct.pack(">bI", 0, 1) + body.replace(b"XX", b"\xff\xff"))
    assert SECRET not in str(raised.value)


def test_a_kept_array_changes_neither_the_record_nor_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, keeping = Codec(Settings()), Codec(Settings(), keep_arrays=True)
    for codec in (plain, keeping):
        monkeypatch.setattr(codec, "_look_up_writer", lambda schema_id, codec=codec: codec._parsed["steps"])
    tokens: dict[str, Any] = {
        "response_token_ids": [5, 300, 70_000],
        "response_logprobs": [-0.5] * 3,
        "loss_mask": [True, False, True],
    }
    value = struct.pack(">bI", 0, 1) + plain.body("steps", step(**tokens))
    kept = keeping.decode("steps", value)
    assert kept == plain.decode("steps", value)
    assert {type(kept[name]) for name in tokens} == {EncodedArray}
    assert keeping.body("steps", kept) == value[5:]
    # A value that the compiled writer refuses goes to fastavro, with the arrays.
    with pytest.raises(Unencodable, match="on field max_tokens"):
        keeping.body("steps", kept | {"sampling": {**new_sampling(), "max_tokens": "1"}})
    assert keeping.body("steps", kept | {"cost_usd": 1}) == plain.body("steps", step(**tokens, cost_usd=1))
    for cut in (value[:-1], value[:40], value + b"\0"):
        with pytest.raises(Malformed) as expected:
            plain.decode("steps", cut)
        with pytest.raises(Malformed) as raised:
            keeping.decode("steps", cut)
        assert str(raised.value) == str(expected.value)


RECORD = {"type": "record", "name": "Step", "namespace": "stepstream"}
DECIMAL = {"type": "bytes", "logicalType": "decimal"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "JSON Schema": {"schema": '{"type": "object"}', "schemaType": "JSON"},
    "Protobuf": {"schema": 'syntax = "proto3"; message Step {}', "schemaType": "PROTOBUF"},
    "references": {"schema": '{"type": "record", "name": "Step", "fields": []}', "references": [{"name": "Other"}]},
    "unknown type": {"schema": orjson.dumps({**RECORD, "fields": [{"name": "a", "type": "Other"}]}).decode()},
    "impossible decimal": {
        "schema": orjson.dumps(
            {**RECORD, "fields": [{"name": "a", "type": {**DECIMAL, "precision": 2, "scale": 9}}]}
        ).decode()
    },
    "negative decimal": {
        "schema": orjson.dumps({**RECORD, "fields": [{"name": "a", "type": {**DECIMAL, "precision": -1}}]}).decode()
    },
    "no JSON": {"schema": "string"},
    "no schema": {"schema": "[[[]]]"},
    "a number": {"schema": "5"},
    "deep": {"schema": '{"type": "array", "items": ' * 5_000 + '"int"' + "}" * 5_000},
    "primitive": {"schema": '"int"'},
    "without fields": {"schema": orjson.dumps({**RECORD, "fields": []}).decode()},
    "itself": {"schema": orjson.dumps({**RECORD, "fields": [{"name": "a", "type": "Step"}]}).decode()},
}


def answer_with(codec: Codec, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the registry answer with one schema."""
    stock = SimpleNamespace(get_schema=lambda _: Schema.from_dict(answer))
    monkeypatch.setattr(codec._client, "_connect", lambda: stock)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_cannot_be_used_makes_an_invalid_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec(Settings())
    answer_with(codec, SCHEMAS[name], monkeypatch)
    for _ in range(2):
        with pytest.raises(CodecError) as raised:
            codec.decode("steps", struct.pack(">bI", 0, 7) + bytes(40))
        assert raised.value.kind in ("unsupported_schema", "malformed")


ARRAY = {"type": "array", "items": "null"}
EMPTY = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}
NAMED = {"type": "record", "name": "stepstream.E", "fields": []}
EMPTY_ITEMS: dict[str, list[Any]] = {
    "null": [ARRAY],
    "in a union in a map": [{"type": "map", "values": ["null", ARRAY]}],
    "an array of arrays": [{"type": "array", "items": ARRAY}],
    "an empty record": [ARRAY | {"items": EMPTY}],
    "a record by name": [NAMED, ARRAY | {"items": "E"}],
    "a name from another namespace": [
        {"type": "record", "name": "other.E", "fields": [{"name": "n", "type": "int"}]},
        NAMED,
        ARRAY | {"items": "E"},
    ],
    "fixed": [ARRAY | {"items": {"type": "fixed", "name": "F", "size": 0}}],
}


@pytest.mark.parametrize("name", EMPTY_ITEMS)
def test_an_array_of_items_without_bytes_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve bytes may claim 2^62 items, and decoding them would never end."""
    fields = [{"name": f"f{at}", "type": field} for at, field in enumerate(EMPTY_ITEMS[name])]
    answer = {"schema": orjson.dumps({**RECORD, "fields": fields}).decode()}
    codec = Codec(Settings())
    answer_with(codec, answer, monkeypatch)
    with pytest.raises(UnsupportedSchema, match="items have no bytes"):
        codec.decode("steps", struct.pack(">bI", 0, 7) + b"\xfe" * 8 + b"\x7f")


@pytest.mark.parametrize("kind", ["Step", ["null", "Step"], {"type": "map", "values": "Step"}])
def test_a_record_that_contains_itself_is_refused(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding one ended the process: the stack has less room than the bytes."""
    codec = Codec(Settings())
    answer = {"schema": orjson.dumps({**RECORD, "fields": [{"name": "a", "type": kind}]}).decode()}
    answer_with(codec, answer, monkeypatch)
    with pytest.raises(UnsupportedSchema, match="contains itself"):
        codec.decode("steps", struct.pack(">bI", 0, 7) + b"\x02" * 1_000_000)


def test_the_schemas_of_the_package_can_be_decoded() -> None:
    codec = Codec(Settings())
    assert not any(map(has_empty_items, codec._parsed.values()))
    assert not any(map(is_recursive, codec._parsed.values()))
    assert has_empty_items(fastavro.parse_schema(ARRAY))


def test_a_sealed_part_that_raises_makes_an_invalid_record(monkeypatch: pytest.MonkeyPatch) -> None:
    class Raising:
        def seal(self, topic: str, record: Any) -> Any:
            return {**record, "seal_key": "k", "sealed": b"x"}

        def open(self, topic: str, writer: Any, record: Any) -> Any:
            raise KeyError("messages")

        def move_out(self, topic: str, record: Any) -> Any:
            return record

        def close(self) -> None:
            pass

    codec = Codec(Settings(), Raising())
    monkeypatch.setattr(codec, "_look_up_writer", lambda schema_id: codec._parsed["steps"])
    with pytest.raises(Malformed, match="sealed part"):
        codec.decode("steps", struct.pack(">bI", 0, 1) + codec.body("steps", step(user="ada")))
