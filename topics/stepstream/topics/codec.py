"""Encode and decode records: Avro in the Confluent wire format (byte 0, the schema's id in 4 bytes, the Avro body).

Writers use this package's schema of a topic, which `stepstream topics apply` registers. Readers convert records of any
registered schema to it. Errors form two families, by the caller's duty:

    CodecError                the record is invalid: write a dead letter of class `kind`
      Malformed               `malformed`: the bytes do not match the wire format or the schema
      UnknownSchema           `unknown_schema`: the registry does not have the schema id
      UnsupportedSchema       `unsupported_schema`: the schema is not Avro, has references, or is no valid Avro schema
      Unencodable             `invalid`: the record does not match its topic's schema
      Oversized               `oversized`: the record is too large for Kafka, and its content for the store
      MissingContent          `missing_content`: the object with the content of a large record does not exist
    RegistryUnavailable       the record may be valid: wait and retry
      NotRegistered           the registry lacks the schema: run `stepstream topics apply`
      KeysUnavailable         the keys of sealed records are missing, or cannot be read or stored now: check Kafka
        WrongMasterKey        the record's key belongs to a master key that is missing here (crypto.key_service)
      ContentUnavailable      the store of large records' content does not answer
"""

import io
import json
import re
import struct
import time
from collections.abc import Mapping
from math import inf
from typing import Any, Protocol, cast

import fastavro
from fastavro.types import Schema as ParsedSchema

from stepstream.config import Settings
from stepstream.schemas import schema, schema_text
from stepstream.topics.avro_reader import Reader, compile_reader
from stepstream.topics.avro_writer import Writer, compile_writer
from stepstream.topics.catalogue import SEALED_TOPICS, TOPICS
from stepstream.topics.empty_items import has_empty_items, is_recursive
from stepstream.topics.registry_client import NotAvro, RegistryClient, RegistryRefused
from stepstream.topics.topic import MAX_MESSAGE_BYTES

MAGIC = 0
HEADER = struct.Struct(">bI")
UNKNOWN_SCHEMA_TTL_S = 30.0
"""Seconds before the codec asks the registry again for an id that it lacked."""
_MISMATCH = " do not match "
"""Text of fastavro between a value and the expected type."""
_QUOTED = re.compile(r"b?'.*'|b?\".*\"", re.DOTALL)


class CodecError(Exception):
    """A record that cannot be read or written; `kind` is the error class of its dead letter."""

    kind = "malformed"


class Malformed(CodecError):
    """The bytes do not match the wire format or the schema."""


class UnknownSchema(CodecError):
    """The registry does not have the schema id of the record."""

    kind = "unknown_schema"


class UnsupportedSchema(CodecError):
    """The record's schema is not Avro, refers to other schemas of the registry, or is no valid Avro schema."""

    kind = "unsupported_schema"


class Unencodable(CodecError):
    """The record does not match its topic's schema."""

    kind = "invalid"


class Oversized(CodecError):
    """The record is too large for Kafka, and its content too large for the store, or not what makes it large."""

    kind = "oversized"


class MissingContent(CodecError):
    """The object with the content of a large record does not exist."""

    kind = "missing_content"


class RegistryUnavailable(Exception):
    """The registry did not answer. The record may be valid: wait and retry."""


class NotRegistered(RegistryUnavailable):
    """The registry lacks the schema: wait until `stepstream topics apply` has run."""


class KeysUnavailable(RegistryUnavailable):
    """The keys of sealed records cannot be read or stored now. The record may be valid: wait and retry."""


class ContentUnavailable(RegistryUnavailable):
    """The store of large records' content does not answer. The record may be valid: wait and retry."""


class Sealing(Protocol):
    """Seals and opens records; `crypto.key_ring.Sealer` implements it."""

    def seal(self, topic: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the record with its personal fields encrypted."""
        ...

    def open(self, topic: str, writer: Any, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record with its personal fields decrypted or read from the store, or marked as erased."""
        ...

    def move_out(self, topic: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the record with its personal fields in the store, as they are: sealed, or in the clear."""
        ...

    def close(self) -> None:
        """Free its connections."""
        ...


class Codec:
    """Encodes and decodes the records of catalogue topics. Thread-safe.

    Without `sealing`, sealed records stay sealed. `crypto.key_ring.sealing_codec` returns a codec with it.
    """

    def __init__(
        self,
        settings: Settings,
        sealing: Sealing | None = None,
        *,
        keep_arrays: bool = False,
        moves_out: bool = False,
    ) -> None:
        """Connect lazily.

        Args:
            settings: connection to the registry, and the prefix of subjects.
            sealing: seals and opens records.
            keep_arrays: decode an array of numbers as an `EncodedArray` where the record has this package's schema.
            moves_out: `encode` and `body` block to move the content of large records to the store; False: the caller
                calls `move_out` before it sends them.
        """
        self._sealing, self._keep_arrays, self._moves_out = sealing, keep_arrays, moves_out
        self._inline_bytes = settings.large_records.inline_bytes
        self._url, self._prefix = settings.schema_registry.url, settings.kafka.prefix
        self._client = RegistryClient(settings.schema_registry)
        self._parsed = {topic.name: fastavro.parse_schema(schema(topic.schema)) for topic in TOPICS.values()}
        self._write: dict[str, Writer] = {}
        self._read: dict[str, Reader] = {}
        self._ids: dict[tuple[str, str | None], bytes] = {}
        self._writers: dict[int, ParsedSchema] = {}
        self._is_current_by_id: dict[tuple[str, int], bool] = {}
        self._unknown_since: dict[int, float] = {}
        self._unsupported: dict[int, str] = {}
        """Fault of each schema that cannot be used, by id; the schema of an id never changes."""
        self._translated: dict[str, ParsedSchema] = {}

    def close(self) -> None:
        """Free the connections to the keys."""
        if self._sealing is not None:
            self._sealing.close()

    def encode(self, topic: str, record: Any, *, whole: bool = False) -> bytes:
        """Return one record as bytes; block for the registry at the first record of a topic.

        Args:
            topic: a topic of the catalogue.
            record: the record.
            whole: keep the content of a large record in it, for a place without a limit.

        Raises:
            Unencodable: the record does not match the schema; the message names the field if it is known.
            RegistryUnavailable: the id of the schema is not cached and the registry does not answer.
            KeysUnavailable: the record has a `user` whose key is unavailable.
            Oversized, ContentUnavailable: as `move_out`.
        """
        return self.header(topic) + self.body(topic, record, whole=whole)

    def header(self, topic: str, text: str | None = None) -> bytes:
        """Return the five bytes before a body; ask the registry once for each schema.

        Args:
            topic: a topic of the catalogue.
            text: JSON text of the schema of the body; default: this package's schema.

        Raises:
            NotRegistered: the registry does not have this schema.
            RegistryUnavailable: the registry does not answer.
        """
        key = topic, text
        return self._ids.get(key) or self._look_up_id(key)

    def body(self, topic: str, record: Any, *, whole: bool = False) -> bytes:
        """Return one record as Avro without the header, sealed if it names a user. The registry is not needed.

        Args and raises: as `encode`.
        """
        body = self._body(topic, record)
        return self.move_out(topic, body) if self._moves_out and not whole else body

    def is_large(self, topic: str, body: bytes) -> bool:
        """Return True if a body exceeds the limit of its topic, and `move_out` can make it smaller."""
        return len(body) > self.inline_limit(topic)

    def inline_limit(self, topic: str) -> float:
        """Return the bytes above which `move_out` can make a body of a topic smaller; inf: never."""
        if self._sealing is None or topic not in SEALED_TOPICS:
            return inf
        return self._inline_bytes + TOPICS[topic].max_message_bytes - MAX_MESSAGE_BYTES

    def move_out(self, topic: str, body: bytes) -> bytes:
        """Return a body whose content is in the store, if it is large; block for the store.

        Raises:
            Oversized: the content is larger than `large_records.max_mb`, or the record is large without it.
            ContentUnavailable: the store does not answer.
        """
        if self._sealing is None or not self.is_large(topic, body):
            return body
        record = cast(dict[str, Any], fastavro.schemaless_reader(io.BytesIO(body), self._parsed[topic], None))
        moved = self._body_unsealed(topic, self._sealing.move_out(topic, record))
        if self.is_large(topic, moved):
            raise Oversized(f"{len(moved)} bytes without its content exceed the limit of {topic}")
        return moved

    def _body(self, topic: str, record: Any) -> bytes:
        try:
            if self._sealing is not None and topic in SEALED_TOPICS and (record["user"] or record.get("other_users")):
                record = self._sealing.seal(topic, record)
            return self._body_unsealed(topic, record)
        except (RegistryUnavailable, CodecError):
            raise
        except Exception as error:  # fastavro passes on any exception of a wrong value
            raise Unencodable(f"record does not fit {TOPICS[topic].schema}: {describe_error(error)}") from error

    def _body_unsealed(self, topic: str, record: Any) -> bytes:
        try:
            return (self._write.get(topic) or self._compile(topic))(record)
        except Exception:  # fastavro names the fault, or accepts types that the compiled writer rejects
            out = io.BytesIO()
            fastavro.schemaless_writer(out, self._parsed[topic], record)
            return out.getvalue()

    def _compile(self, topic: str) -> Writer:
        self._write[topic] = compile_writer(self._parsed[topic])
        return self._write[topic]

    def _read_current(self, topic: str, value: bytes) -> dict[str, Any] | None:
        """Return a record with its number arrays encoded; None: fastavro must read it, or name its fault."""
        try:
            if topic not in self._read:
                self._read[topic] = compile_reader(self._parsed[topic])
            record, end = self._read[topic](value, HEADER.size)
        except Exception:  # as in `decode`
            return None
        return record if end == len(value) else None

    def translate(self, topic: str, text: str, body: bytes) -> bytes:
        """Convert a body of the schema `text` to this package's schema.

        Raises:
            Malformed: the body does not match that schema.
            KeysUnavailable: the record is sealed and its key is unavailable.
        """
        try:
            writer = self._translated.get(text) or fastavro.parse_schema(json.loads(text))
            record = fastavro.schemaless_reader(io.BytesIO(body), writer, self._parsed[topic])
        except Exception as error:  # as in `decode`
            raise Malformed(f"does not read as {TOPICS[topic].schema}: {describe_error(error)}"[:300]) from error
        self._translated[text] = writer
        # The sealed blob has the schema of its record too: open it and seal it again.
        return self.body(topic, self._open(topic, writer, cast(dict[str, Any], record)))

    def decode(self, topic: str, value: bytes | None) -> dict[str, Any]:
        """Return one record from bytes of any registered schema, in the shape of this package's schema.

        Raises:
            Malformed: the bytes are not framed, cut off, or not of this topic's type.
            UnknownSchema: the registry does not have the schema id.
            UnsupportedSchema: the schema of that id cannot be used.
            RegistryUnavailable: the schema is not cached and the registry does not answer.
            KeysUnavailable: the record is sealed and its key is unavailable.
            MissingContent, ContentUnavailable: the content is in the store and cannot be read, ever or now.
        """
        if value is None or len(value) < HEADER.size:
            raise Malformed("shorter than the five-byte header of the wire format")
        magic, schema_id = HEADER.unpack_from(value)
        if magic != MAGIC:
            raise Malformed(f"starts with byte {magic & 0xFF:#04x}, not with 0x00: not in the Confluent wire format")
        writer = self._writers.get(schema_id) or self._look_up_writer(schema_id)
        is_current = self._is_current(topic, schema_id, writer)
        if is_current and self._keep_arrays and (kept := self._read_current(topic, value)) is not None:
            return self._open(topic, writer, kept)
        body = io.BytesIO(value)
        body.seek(HEADER.size)
        reader = None if is_current else self._parsed[topic]
        try:
            record = fastavro.schemaless_reader(body, writer, reader)
        except Exception as error:  # corrupt bytes raise any exception
            raise Malformed(
                f"schema {schema_id} does not read as {TOPICS[topic].schema}: {describe_error(error)}"[:300]
            ) from error
        if body.tell() != len(value):
            raise Malformed(f"{len(value) - body.tell()} bytes after the end of the record")
        return self._open(topic, writer, cast(dict[str, Any], record))

    def _open(self, topic: str, writer: ParsedSchema, record: dict[str, Any]) -> dict[str, Any]:
        if self._sealing is None or topic not in SEALED_TOPICS:
            return record
        if record["seal_key"] is not None or record["claim"] is not None:
            try:
                return self._sealing.open(topic, writer, record)
            except (RegistryUnavailable, CodecError):
                raise
            except Exception as error:  # a foreign writer's schema, or a blob that does not match it
                raise Malformed(f"the sealed part does not read: {describe_error(error)}"[:300]) from error
        return record

    def _is_current(self, topic: str, schema_id: int, writer: ParsedSchema) -> bool:
        key = topic, schema_id
        if key not in self._is_current_by_id:
            self._is_current_by_id[key] = writer == self._parsed[topic]
        return self._is_current_by_id[key]

    def _look_up_id(self, key: tuple[str, str | None]) -> bytes:
        topic, text = key
        written = text or schema_text(TOPICS[topic].schema)
        schema_id = self._call(lambda: self._client.look_up(self._prefix + TOPICS[topic].subject, written))
        if schema_id is None:
            raise NotRegistered(
                f"the schema of {topic} is not registered at {self._url}: run `stepstream topics apply`"
            )
        self._ids[key] = HEADER.pack(MAGIC, schema_id)
        return self._ids[key]

    def _look_up_writer(self, schema_id: int) -> ParsedSchema:
        if time.monotonic() - self._unknown_since.get(schema_id, -UNKNOWN_SCHEMA_TTL_S) < UNKNOWN_SCHEMA_TTL_S:
            raise UnknownSchema(f"no schema {schema_id} in the registry")
        if fault := self._unsupported.get(schema_id):
            raise UnsupportedSchema(fault)
        try:
            text = self._call(lambda: self._client.schema(schema_id))
            if text is None:
                self._unknown_since[schema_id] = time.monotonic()
                raise UnknownSchema(f"no schema {schema_id} in the registry")
            parsed = fastavro.parse_schema(json.loads(text))
            if has_empty_items(parsed):
                raise ValueError("it has an array whose items have no bytes, of which a few bytes may claim any number")
            if is_recursive(parsed):
                raise ValueError("it has a record that contains itself, which a few bytes may nest without end")
        except (RegistryUnavailable, UnknownSchema):
            raise
        except Exception as error:  # fastavro passes on any exception of a wrong schema
            self._unsupported[schema_id] = f"schema {schema_id} cannot be used: {describe_error(error)}"[:300]
            raise UnsupportedSchema(self._unsupported[schema_id]) from error
        self._writers[schema_id] = parsed
        return parsed

    def _call(self, call: Any) -> Any:
        """Return the registry's answer; None for status 404."""
        try:
            return call()
        except RegistryRefused as error:
            if error.status == 404:
                return None
            raise RegistryUnavailable(f"schema registry at {self._url}: {error}") from error
        except NotAvro:
            raise
        except Exception as error:  # connection errors of any kind, and malformed answers
            raise RegistryUnavailable(f"schema registry at {self._url} does not answer: {error!r}") from error


def describe_error(error: Exception) -> str:
    """Describe the fault of a record without the faulty value: the text goes into logs and onto `dead-letters`."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, UnicodeError):
        return f"{kind}: {getattr(error, 'reason', 'not text')}"
    _, mismatch, expected = text.rpartition(_MISMATCH)
    return f"{kind}: a value does not match {expected}" if mismatch else f"{kind}: {_QUOTED.sub('…', text)}"
