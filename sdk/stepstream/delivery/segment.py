"""Encode and parse the files of the spool: a header with the delivered mark, then frames with length and CRC-32.

A segment contains its schemas: a schema frame precedes the first record of each topic. So a later version of this
package can still send the records.
"""

import os
import struct
import zlib
from collections.abc import Iterator

import orjson

from stepstream.delivery.types import SpoolRecord

MAGIC = b"STPSPL1\n"
HEADER_BYTES = 32
"""Offset of the first frame."""

_MARK = struct.Struct("<QI")
_FRAME = struct.Struct("<II")
_SCHEMA = struct.Struct("<BBH")
_RECORD = struct.Struct("<BBHIIq")
_SCHEMA_KIND = 0
_RECORD_KIND = 1


class Schemas(dict[int, tuple[str, str]]):
    """Topic and schema text, by the number that a segment assigned to them."""


def blank_header() -> bytes:
    """Return the header of a new segment: nothing is delivered."""
    return MAGIC + _mark(HEADER_BYTES).ljust(HEADER_BYTES - len(MAGIC), b"\0")


def write_mark(fd: int, delivered_end: int) -> None:
    """Record that every byte before the offset `delivered_end` is delivered. One system call.

    Raises:
        OSError: the file cannot be written.
    """
    os.pwrite(fd, _mark(delivered_end), len(MAGIC))


def read_mark(data: bytes) -> int:
    """Return the end offset of the delivered records; with a damaged mark, the first frame's: events may repeat."""
    mark = data[len(MAGIC) : len(MAGIC) + _MARK.size]
    if len(mark) == _MARK.size:
        delivered_end, checksum = _MARK.unpack(mark)
        if zlib.crc32(mark[:8]) == checksum:
            return int(delivered_end)
    return HEADER_BYTES


def schema_frame(number: int, topic: str, schema: str) -> bytes:
    """Return the frame that assigns `number` to a topic and its schema."""
    name = topic.encode()
    return _frame(b"".join((_SCHEMA.pack(_SCHEMA_KIND, number, len(name)), name, schema.encode())))


def record_frame(number: int, record: SpoolRecord) -> bytes:
    """Return the frame of a record whose schema has `number`."""
    key, event_id = record.key.encode(), record.event_id.encode()
    headers = orjson.dumps(dict(record.headers)) if record.headers else b""
    prefix = _RECORD.pack(_RECORD_KIND, number, len(event_id), len(key), len(headers), record.occurred_at_us)
    return _frame(b"".join((prefix, event_id, key, headers, record.body)))


def read_frames(data: bytes, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the payload of each frame and the offset after it, up to the first truncated or damaged frame."""
    offset, end = start, len(data)
    while offset + _FRAME.size <= end:
        length, checksum = _FRAME.unpack_from(data, offset)
        after = offset + _FRAME.size + length
        if after > end or not length:
            return
        payload = data[offset + _FRAME.size : after]
        if zlib.crc32(payload) != checksum:
            return
        yield payload, after
        offset = after


def parse_frame(payload: bytes, schemas: Schemas) -> SpoolRecord | None:
    """Return the record of a frame; for a schema frame, add the schema to `schemas` and return None."""
    if payload[0] == _SCHEMA_KIND:
        _, number, length = _SCHEMA.unpack_from(payload)
        text = payload[_SCHEMA.size :]
        schemas[number] = (text[:length].decode(), text[length:].decode())
        return None
    _, number, id_length, key_length, headers_length, occurred_at_us = _RECORD.unpack_from(payload)
    key_start = _RECORD.size + id_length
    headers_start = key_start + key_length
    body_start = headers_start + headers_length
    topic, schema = schemas[number]
    return SpoolRecord(
        topic,
        payload[key_start:headers_start].decode(),
        payload[_RECORD.size : key_start].decode(),
        occurred_at_us,
        orjson.loads(payload[headers_start:body_start]) if headers_length else None,
        schema,
        payload[body_start:],
    )


def is_record(payload: bytes) -> bool:
    """Return True if a frame contains a record, False if it contains a schema."""
    return payload[0] == _RECORD_KIND


def _mark(delivered_end: int) -> bytes:
    packed = delivered_end.to_bytes(8, "little")
    return packed + zlib.crc32(packed).to_bytes(4, "little")


def _frame(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
