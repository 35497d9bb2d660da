"""JSON of other writers is parsed into values that orjson can write."""

import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.core.lenient_json import is_too_deep, loads

JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3), st.lists, max_leaves=4)


@given(JSON)
def test_valid_json_is_parsed_unchanged(value: Any) -> None:
    assert loads(orjson.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'{"cut \ud83d": ["\ud83d", "\ud83d\ude00"]}', {"cut \ufffd": ["\ufffd", "\U0001f600"]}),
        (b'[-Infinity, 1e400, "\xed\xa0\xbd"]', [-math.inf, math.inf, "\ufffd"]),
        (b'["\xed\xa0\xbd", 123456789012345678901234567890]', ["\ufffd", 1.2345678901234568e29]),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
    ],
)
def test_json_of_python_and_javascript_is_parsed(text: bytes, value: Any) -> None:
    assert loads(text) == value
    orjson.dumps(loads(text))


@pytest.mark.parametrize("empty", [b"[]", b"1"])
@pytest.mark.parametrize("levels", [0, 1, 253, 254, 255, 1000])
def test_a_value_is_too_deep_if_orjson_cannot_write_it(levels: int, empty: bytes) -> None:
    value = loads(b'{"a": 1, "b": [' * (levels // 2) + empty + b"]}" * (levels // 2))
    try:
        orjson.dumps(value)
    except TypeError:
        assert is_too_deep(value)
    else:
        assert not is_too_deep(value)


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a": "\xff"}', b"[" * 100_000, b'{"a": "\\ud83d"}' + b" " * 9_000_000 + b"}"]
)
def test_invalid_json_raises(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the texts of two parsers
        loads(text)
