"""Keep an Avro array of numbers encoded, for a job that only passes it on.

Two thirds of a step's bytes are token ids and logprobs. Most jobs need their number at most. `avro_reader` returns such
arrays as `EncodedArray`, and `avro_writer` copies their bytes.
"""

import io
import struct
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, overload

import fastavro

from stepstream.topics.varints import zigzag

NUMBER_TYPES = ("int", "long", "float", "double", "boolean")
"""Avro types of which an array stays encoded."""
_FORMATS = {"float": (4, "f"), "double": (8, "d"), "boolean": (1, "?")}
"""Bytes and `struct` code of the types of fixed size."""
_INTEGERS = fastavro.parse_schema({"type": "array", "items": "long"})
_PARITIES = b"eo" * 0x40 + b"EO" * 0x40
"""Parity of each byte; upper case: before the last."""


class EncodedArray(Sequence[Any]):
    """An array of at least one number. It reads as the list of its items, decoded at each use."""

    __slots__ = ("_count", "items", "kind")

    def __init__(self, kind: str, count: int, items: bytes) -> None:
        """Take over encoded items.

        Args:
            kind: Avro type of the items.
            count: number of items.
            items: the items as fastavro encodes them, without block counts.
        """
        self.kind, self._count, self.items = kind, count, items

    def to_list(self) -> list[Any]:
        """Return the items, decoded."""
        if self.kind in _FORMATS:
            return list(struct.unpack(f"<{self._count}{_FORMATS[self.kind][1]}", self.items))
        encoded = io.BytesIO(b"".join((zigzag(self._count), self.items, b"\0")))
        items: Any = fastavro.schemaless_reader(encoded, _INTEGERS, None)
        return list(items)

    def has_negative(self) -> bool:
        """Return True if an item is below 0, without decoding integers."""
        if self.kind in _FORMATS:
            return bool(min(self.to_list()) < 0)
        parities = self.items.translate(_PARITIES)
        # A negative number has an odd code; its first byte begins the array or follows the last byte of another.
        return parities[:1] in b"oO" or b"eo" in parities or b"eO" in parities or b"oo" in parities or b"oO" in parities

    def int32(self) -> bytes:
        """Return integers as little-endian int32. Reads of Avro keep only integers of 28 bits encoded."""
        import numpy as np  # agents that use the SDK import this module and have no numpy

        codes = np.frombuffer(self.items, np.uint8)
        last = np.flatnonzero(codes < 0x80)
        first = np.concatenate(([0], last[:-1] + 1))
        shifts = 7 * (np.arange(len(codes)) - np.repeat(first, last - first + 1))
        zigzags = np.add.reduceat((codes & 0x7F).astype(np.int32) << shifts.astype(np.int32), first, dtype=np.int32)
        return ((zigzags >> 1) ^ -(zigzags & 1)).astype("<i4").tobytes()

    def part(self, start: int, end: int) -> Sequence[Any]:
        """Return the items from `start` to `end`, both in range; encoded if that needs no decoding."""
        if start == 0 and end == self._count:
            return self
        if start < end and self.kind in _FORMATS:
            width = _FORMATS[self.kind][0]
            return EncodedArray(self.kind, end - start, self.items[start * width : end * width])
        return self.to_list()[start:end]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_list())

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.to_list()[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EncodedArray) and other.kind == self.kind and self.kind not in ("float", "double"):
            return self.items == other.items
        return isinstance(other, EncodedArray | list) and self.to_list() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(self.to_list())


def concatenate(parts: Sequence[Sequence[Any]]) -> list[Any] | EncodedArray:
    """Return the items of all parts: encoded if all parts are, else a list."""
    parts = [part for part in parts if part]
    arrays = [part for part in parts if isinstance(part, EncodedArray)]
    if len({array.kind for array in arrays}) == 1 and len(arrays) == len(parts):
        return EncodedArray(arrays[0].kind, sum(map(len, arrays)), b"".join([array.items for array in arrays]))
    return [item for part in parts for item in part]
