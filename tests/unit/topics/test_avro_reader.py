"""Compiled readers and fastavro read the same record from the same bytes."""

import io
import struct
from typing import Any

import fastavro
import pytest
from avro_values import PARSED, SHORT, by_fastavro, values
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stepstream.topics.avro_reader import compile_reader
from stepstream.topics.avro_writer import compile_writer
from stepstream.topics.encoded_array import EncodedArray
from stepstream.topics.varints import zigzag

READERS = {name: compile_reader(parsed) for name, parsed in PARSED.items()}
WRITERS = {name: compile_writer(parsed) for name, parsed in PARSED.items()}
ARRAYS: dict[str, Any] = {
    kind: fastavro.parse_schema(
        {"type": "record", "name": f"Of_{kind}", "fields": [{"name": "a", "type": {"type": "array", "items": kind}}]}
    )
    for kind in ("int", "long", "float", "double", "boolean")
}
ARRAY_READERS = {kind: compile_reader(parsed) for kind, parsed in ARRAYS.items()}


def read_fully(data: bytes, parsed: Any) -> Any:
    """Return the record and its size in bytes by fastavro."""
    body = io.BytesIO(data)
    return fastavro.schemaless_reader(body, parsed, None), body.tell()


@pytest.mark.parametrize("name", PARSED)
@settings(max_examples=25)
@given(data=st.data())
def test_a_record_reads_as_by_fastavro_and_is_written_back_byte_for_byte(name: str, data: st.DataObject) -> None:
    written = by_fastavro(name, data.draw(values(PARSED[name], PARSED[name]["__named_schemas"], SHORT)))
    record, end = READERS[name](b"header" + written, len("header"))
    assert end == len("header") + len(written)
    assert repr(record) == repr(read_fully(written, PARSED[name])[0])  # NaN differs from itself
    assert WRITERS[name](record) == by_fastavro(name, record) == written


@settings(max_examples=300)
@given(name=st.sampled_from(["Step", "LabeledTrajectory"]), data=st.data())
def test_changed_bytes_read_as_by_fastavro_or_not_at_all(name: str, data: st.DataObject) -> None:
    written = bytearray(by_fastavro(name, data.draw(values(PARSED[name], PARSED[name]["__named_schemas"], SHORT))))
    for _ in range(data.draw(st.integers(1, 3))):
        written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(written[: data.draw(st.integers(0, len(written)))])
    try:
        record, end = READERS[name](changed, 0)
        assume(end == len(changed))
    except Exception:
        return
    expected, size = read_fully(changed, PARSED[name])
    assert repr(record) == repr(expected)
    assert size == end
    assert WRITERS[name](record) == by_fastavro(name, expected)


def encoded_items(kind: str, items: list[Any]) -> bytes:
    if kind in ("int", "long"):
        return b"".join(map(zigzag, items))
    return struct.pack(f"<{len(items)}{ {'float': 'f', 'double': 'd', 'boolean': '?'}[kind] }", *items)


def small(kind: str) -> st.SearchStrategy[Any]:
    return {
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "boolean": st.booleans(),
    }.get(kind, st.integers(-(2**27), 2**27 - 1))


@pytest.mark.parametrize("kind", ARRAYS)
@given(data=st.data())
def test_an_array_in_several_blocks_with_and_without_sizes_is_kept_as_one(kind: str, data: st.DataObject) -> None:
    blocks = data.draw(st.lists(st.tuples(st.lists(small(kind), min_size=1, max_size=9), st.booleans()), max_size=4))
    written = b""
    for items, has_size in blocks:
        coded = encoded_items(kind, items)
        written += zigzag(-len(items)) + zigzag(len(coded)) if has_size else zigzag(len(items))
        written += coded
    record, end = ARRAY_READERS[kind](written + b"\0", 0)
    flat = [item for items, _ in blocks for item in items]
    assert record == {"a": flat} == read_fully(written + b"\0", ARRAYS[kind])[0]
    assert end == len(written) + 1
    assert isinstance(record["a"], EncodedArray) == bool(flat)
    one_block = io.BytesIO()
    fastavro.schemaless_writer(one_block, ARRAYS[kind], {"a": flat})
    assert compile_writer(ARRAYS[kind])(record) == one_block.getvalue()


@pytest.mark.parametrize("short", range(1, 60))
@pytest.mark.parametrize("long", [20, 60])
@pytest.mark.parametrize("bits", [7, 14, 27])
def test_a_block_ends_after_its_last_number(bits: int, long: int, short: int) -> None:
    """The size of the first numbers misleads about the last ones; the next block begins as a number of two bytes."""
    blocks = [[2**bits - 1] * long + [0] * short, [1] * 70]
    written = b"".join(zigzag(len(block)) + encoded_items("long", block) for block in blocks) + b"\0"
    assert ARRAY_READERS["long"](written, 0) == ({"a": blocks[0] + blocks[1]}, len(written))


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("int", b"\x02\x80\x00\x00"),  # 0 in two bytes: fastavro would write it in one
        ("int", zigzag(1) + zigzag(2**40) + b"\0"),  # beyond the type
        ("int", b"\x02\x80"),  # cut off
        ("int", b"\x02\x02"),  # no end
        ("int", zigzag(2**40) + b"\x02\0"),
        ("float", zigzag(2**60) + b"\0"),
        ("float", zigzag(1) + b"\0\0\0"),
        ("boolean", zigzag(1) + b"\2\0"),
        ("int", zigzag(-1) + zigzag(2) + b"\x02\0"),  # a wrong size
        ("int", zigzag(-1) + zigzag(-1) + b"\x02\0"),
    ],
)
def test_an_unusual_array_is_left_to_fastavro(kind: str, written: bytes) -> None:
    with pytest.raises((ValueError, IndexError, OverflowError)):
        ARRAY_READERS[kind](written, 0)


@pytest.mark.parametrize(
    "items", ["null", {"type": "record", "name": "Empty", "fields": []}, {"type": "array", "items": "null"}]
)
def test_a_type_without_bytes_has_no_reader(items: Any) -> None:
    parsed: Any = fastavro.parse_schema(
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    )
    with pytest.raises(ValueError, match="no reader of"):
        compile_reader(parsed)
