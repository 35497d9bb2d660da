"""Encode integers as Avro's zigzag varints, from tables."""

import struct
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter

_SMALL = 1 << 14
_MAX_CACHED = 1 << 16
"""Encoded integers in the cache: some megabytes at most."""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_VARINTS = [_varint(number) for number in range(_SMALL)]
_MORE = [bytes((number & 0x7F | 0x80, number >> 7 | 0x80)) for number in range(_SMALL)]
"""The low 14 bits of a longer number, in two bytes."""
HALF = _SMALL // 2
SIZES = [_VARINTS[2 * length] for length in range(HALF)]
"""Encoded integers from 0 to below `HALF`, which cover most lengths."""


def zigzag(number: int) -> bytes:
    """Encode an integer as Avro's zigzag varint.

    Raises:
        OverflowError: it needs more than 64 bits.
        TypeError: it is no integer.
    """
    coded = (number << 1) ^ (number >> 63)
    if 0 <= coded < _SMALL:
        return _VARINTS[coded]
    if not 0 <= coded < 1 << 64:
        raise OverflowError(number)
    low = _MORE[coded & 0x3FFF]
    coded >>= 14
    return low + _VARINTS[coded] if coded < _SMALL else low + _MORE[coded & 0x3FFF] + _high(coded >> 14)


@lru_cache(1024)
def _high(coded: int) -> bytes:
    """Encode the bits above 28. For times in microseconds they are the same for two minutes."""
    out = b""
    while coded >= _SMALL:
        out += _MORE[coded & 0x3FFF]
        coded >>= 14
    return out + _VARINTS[coded]


class _Zigzags(dict[int, bytes]):
    """Cache of `zigzag` for numbers that recur, as token ids of a vocabulary do."""

    def __missing__(self, number: int) -> bytes:
        if len(self) >= _MAX_CACHED:
            self.clear()
        coded = self[number] = zigzag(number)
        return coded


_zigzags = _Zigzags()


def encode_integers(values: Sequence[int], code: str) -> bytes:
    """Encode the items of an array; `code` is their `struct` type, which checks that all are integers in range."""
    struct.pack(f"{len(values)}{code}", *values)
    return b"".join(itemgetter(*values)(_zigzags)) if len(values) > 1 else _zigzags[values[0]]
