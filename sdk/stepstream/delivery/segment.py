"""The files of the spool: a header with the delivered mark, then frames, each with its length and checksum.

A segment explains itself: before the first record of a topic comes a frame with the schema that it is written with,
so a later version of this package can still send it.
"""

import os
import struct
import zlib
from collections.abc import Iterator

import orjson

from stepstream.delivery.types import SpoolRecord

MAGIC = b"STPSPL1\n"
BEGIN = 32
"""Offset of the first frame."""

_MARK = struct.Struct("<QI")
_FRAME = struct.Struct("<II")
_SCHEMA = struct.Struct("<BBH")
_RECORD = struct.Struct("<BBHIIq")
_SCHEMA_KIND = 0
_RECORD_KIND = 1


class Schemas(dict[int, tuple[str, str]]):
    """Topic and schema text by the number that a segment gave them."""


def blank_header() -> bytes:
    """The beginning of a new segment: nothing delivered."""
    return MAGIC + _mark(BEGIN).ljust(BEGIN - len(MAGIC), b"\0")


def write_mark(fd: int, delivered: int) -> None:
    """Notes that everything before the offset `delivered` has arrived. One system call.

    Raises:
        OSError: the file cannot be written.
    """
    os.pwrite(fd, _mark(delivered), len(MAGIC))


def read_mark(data: bytes) -> int:
    """How far a segment has been delivered; its beginning where the mark cannot be read: events may repeat."""
    mark = data[len(MAGIC) : len(MAGIC) + _MARK.size]
    if len(mark) == _MARK.size:
        delivered, checksum = _MARK.unpack(mark)
        if zlib.crc32(mark[:8]) == checksum:
            return int(delivered)
    return BEGIN


def schema_frame(number: int, topic: str, schema: str) -> bytes:
    """The frame that says what schema `number` is."""
    name = topic.encode()
    return _frame(b"".join((_SCHEMA.pack(_SCHEMA_KIND, number, len(name)), name, schema.encode())))


def record_frame(number: int, record: SpoolRecord) -> bytes:
    """One record as a frame."""
    key, event_id = record.key.encode(), record.event_id.encode()
    headers = orjson.dumps(dict(record.headers)) if record.headers else b""
    head = _RECORD.pack(_RECORD_KIND, number, len(event_id), len(key), len(headers), record.occurred_at_us)
    return _frame(b"".join((head, event_id, key, headers, record.body)))


def frames(data: bytes, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """The payload of each whole frame and the offset after it, up to the first that is cut off or damaged."""
    at, end = start, len(data)
    while at + _FRAME.size <= end:
        length, checksum = _FRAME.unpack_from(data, at)
        after = at + _FRAME.size + length
        if after > end or not length:
            return
        payload = data[at + _FRAME.size : after]
        if zlib.crc32(payload) != checksum:
            return
        yield payload, after
        at = after


def parse(payload: bytes, schemas: Schemas) -> SpoolRecord | None:
    """The record of a frame; None for a schema's frame, which goes into `schemas`."""
    if payload[0] == _SCHEMA_KIND:
        _, number, length = _SCHEMA.unpack_from(payload)
        text = payload[_SCHEMA.size :]
        schemas[number] = (text[:length].decode(), text[length:].decode())
        return None
    _, number, id_length, key_length, headers_length, occurred_at_us = _RECORD.unpack_from(payload)
    key_at = _RECORD.size + id_length
    headers_at = key_at + key_length
    body_at = headers_at + headers_length
    topic, schema = schemas[number]
    return SpoolRecord(
        topic,
        payload[key_at:headers_at].decode(),
        payload[_RECORD.size : key_at].decode(),
        occurred_at_us,
        orjson.loads(payload[headers_at:body_at]) if headers_length else None,
        schema,
        payload[body_at:],
    )


def is_record(payload: bytes) -> bool:
    """Whether a frame holds a record and no schema."""
    return payload[0] == _RECORD_KIND


def _mark(delivered: int) -> bytes:
    packed = delivered.to_bytes(8, "little")
    return packed + zlib.crc32(packed).to_bytes(4, "little")


def _frame(payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
