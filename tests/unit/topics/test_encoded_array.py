"""An encoded array reads as the list of its items."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.topics.avro_writer import compile_writer
from stepstream.topics.encoded_array import EncodedArray
from stepstream.topics.varints import zigzag

NUMBERS = st.lists(st.integers(-(2**27), 2**27 - 1), min_size=1)


def of(numbers: list[int]) -> EncodedArray:
    return EncodedArray("int", len(numbers), b"".join(map(zigzag, numbers)))


@given(numbers=NUMBERS, start=st.integers(-9, 9), end=st.integers(-9, 9))
def test_it_reads_as_a_list(numbers: list[int], start: int, end: int) -> None:
    array = of(numbers)
    assert array == numbers
    assert array == of(numbers)
    assert array != [*numbers, 0]
    assert array != of([*numbers, 0])
    assert list(array) == numbers
    assert len(array) == len(numbers)
    assert array[start:end] == numbers[start:end]
    assert array[0] == numbers[0]
    one = [1]
    assert array + one == [*numbers, 1]
    assert one + array == [1, *numbers]
    assert array + array == numbers + numbers
    assert repr(array) == repr(numbers)


@given(numbers=NUMBERS)
def test_integers_become_little_endian_int32(numbers: list[int]) -> None:
    assert of(numbers).int32() == struct.pack(f"<{len(numbers)}i", *numbers)


@given(numbers=NUMBERS)
def test_a_negative_number_is_found_without_decoding(numbers: list[int]) -> None:
    assert of(numbers).has_negative() == (min(numbers) < 0)
    logprobs = EncodedArray("float", 2, b"\0\0\x80\x3f\0\0\x80\xbf")
    assert logprobs == [1.0, -1.0]
    assert math.fsum(logprobs) == 0.0
    assert logprobs.has_negative()


def test_it_is_not_written_as_another_type() -> None:
    fields = [{"name": "a", "type": {"type": "array", "items": "float"}}]
    schema = {"type": "record", "name": "R", "fields": fields, "__named_schemas": {}}
    with pytest.raises(TypeError, match="an array of int, not of float"):
        compile_writer(schema)({"a": of([1])})
