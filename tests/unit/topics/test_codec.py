"""Errors about invalid records contain nothing of their content."""

import struct
from typing import Any

import pytest
from sample_records import step

from stepstream.config import SchemaRegistrySettings
from stepstream.topics.codec import Codec, Malformed, Unencodable
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
        Codec(SchemaRegistrySettings()).body("steps", step(**fields))
    assert SECRET not in str(raised.value)


def test_a_decoding_error_hides_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec(SchemaRegistrySettings())
    monkeypatch.setattr(codec, "_look_up_writer", lambda schema_id: codec._parsed["steps"])
    body = codec.body("steps", step(response=new_message(role="assistant", content=f"{SECRET} XX")))
    with pytest.raises(Malformed, match="invalid start byte") as raised:
        codec.decode("steps", struct.pack(">bI", 0, 1) + body.replace(b"XX", b"\xff\xff"))
    assert SECRET not in str(raised.value)
