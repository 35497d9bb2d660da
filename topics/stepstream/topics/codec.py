"""Avro in the Confluent wire format: a zero byte, the schema's id as four big-endian bytes, the Avro body.

Writers use the newest schema of this package, which `stepstream topics apply` registers; readers resolve whatever
schema a record was written with to the one that they know.
"""

import io
import json
import re
import struct
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import fastavro
from fastavro.types import Schema as ParsedSchema

from stepstream.config import SchemaRegistrySettings
from stepstream.crypto.sealing import SEALED_TOPICS
from stepstream.schemas import schema, schema_text
from stepstream.topics.avro_writer import Writer, compiled
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.registry_client import RegistryClient, RegistryRefused

if TYPE_CHECKING:
    pass

MAGIC = 0
HEADER = struct.Struct(">bI")
FORGET_UNKNOWN_S = 30.0
_MISFIT = " do not match "
"""Between a value and what fastavro expected."""
_QUOTED = re.compile(r"b?'.*'|b?\".*\"", re.DOTALL)


class CodecError(Exception):
    """A record that cannot be read or written; `kind` is the error class of its dead letter."""

    kind = "malformed"


class Malformed(CodecError):
    """Bytes that are not what the wire format and the schema promise."""


class UnknownSchema(CodecError):
    """A schema id that the registry does not know."""

    kind = "unknown_schema"


class Unencodable(CodecError):
    """A record that does not fit its topic's schema."""

    kind = "invalid"


class RegistryUnavailable(Exception):
    """The registry did not answer: the record may be sound, so wait and try again."""


class NotRegistered(RegistryUnavailable):
    """The registry answers but does not hold the schema: wait until somebody applies the catalogue."""


class KeysUnavailable(RegistryUnavailable):
    """The keys of sealed records cannot be had: the record may be sound, so wait and try again."""


def told(error: Exception) -> str:
    """What is wrong with a record, without the value that is wrong: it goes into logs and onto `dead-letters`."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, UnicodeError):
        return f"{kind}: {getattr(error, 'reason', 'not text')}"
    _, mark, wanted = text.rpartition(_MISFIT)
    return f"{kind}: a value does not match {wanted}" if mark else f"{kind}: {_QUOTED.sub('…', text)}"


class Sealing(Protocol):
    """What seals and opens records; see `seal_keys.py`."""

    def seal(self, topic: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The record with its personal fields encrypted."""
        ...

    def open(self, topic: str, writer: Any, record: dict[str, Any]) -> dict[str, Any]:
        """The record with its personal fields in the clear, or marked as erased."""
        ...

    def close(self) -> None:
        """Frees what it holds."""
        ...


class Codec:
    """Encodes and decodes the records of catalogue topics. Safe to share between threads.

    Without `sealing`, records are taken as they are: sealed ones stay sealed. `codec_of` makes one with it.
    """

    def __init__(self, registry: SchemaRegistrySettings, sealing: Sealing | None = None) -> None:
        self._sealing = sealing
        self._url = registry.url
        self._client = RegistryClient(registry)
        self._parsed = {topic.name: fastavro.parse_schema(schema(topic.schema)) for topic in TOPICS.values()}
        self._write: dict[str, Writer] = {}
        self._ids: dict[tuple[str, str | None], bytes] = {}
        self._writers: dict[int, ParsedSchema] = {}
        self._same: dict[tuple[str, int], bool] = {}
        self._unknown: dict[int, float] = {}
        self._translated: dict[str, ParsedSchema] = {}

    def close(self) -> None:
        """Frees the connections to the keys."""
        if self._sealing is not None:
            self._sealing.close()

    def encode(self, topic: str, record: Any) -> bytes:
        """One record as bytes.

        Raises:
            Unencodable: it does not fit the schema; the message names the field where known.
            RegistryUnavailable: the id of the schema is not cached and the registry does not answer, or the record has
                a `user` whose key cannot be had (`KeysUnavailable`).
        """
        return self.header(topic) + self.body(topic, record)

    def header(self, topic: str, text: str | None = None) -> bytes:
        """The five bytes before a body; looked up once for each schema.

        Args:
            topic: a topic of the catalogue.
            text: schema that the body was written with; default: this package's.

        Raises:
            NotRegistered: the registry does not know this schema.
            RegistryUnavailable: it does not answer.
        """
        key = topic, text
        return self._ids.get(key) or self._look_up_id(key)

    def body(self, topic: str, record: Any) -> bytes:
        """One record as Avro without the header, sealed where it names somebody: needs no registry.

        Raises:
            Unencodable: it does not fit the schema; the message names the field where known.
            KeysUnavailable: its key cannot be had.
        """
        try:
            if self._sealing is not None and topic in SEALED_TOPICS and (record["user"] or record.get("other_users")):
                record = self._sealing.seal(topic, record)
            try:
                return (self._write.get(topic) or self._compile(topic))(record)
            except Exception:  # fastavro says what is wrong, or takes what is merely unusual
                out = io.BytesIO()
                fastavro.schemaless_writer(out, self._parsed[topic], record)
                return out.getvalue()
        except (RegistryUnavailable, CodecError):
            raise
        except Exception as error:  # fastavro raises whatever the wrong value provokes
            raise Unencodable(f"record does not fit {TOPICS[topic].schema}: {told(error)}") from error

    def _compile(self, topic: str) -> Writer:
        self._write[topic] = compiled(self._parsed[topic])
        return self._write[topic]

    def translate(self, topic: str, text: str, body: bytes) -> bytes:
        """A body that was written with another schema, `text`, in this package's.

        Raises:
            Malformed: it does not read with that schema.
            KeysUnavailable: it is sealed and its key cannot be had.
        """
        try:
            writer = self._translated.get(text) or fastavro.parse_schema(json.loads(text))
            record = fastavro.schemaless_reader(io.BytesIO(body), writer, self._parsed[topic])
        except Exception as error:  # as in `decode`
            raise Malformed(f"does not read as {TOPICS[topic].schema}: {told(error)}"[:300]) from error
        self._translated[text] = writer
        # What is sealed is written with its record's schema too, so it is opened and sealed again.
        return self.body(topic, self._open(topic, writer, cast(dict[str, Any], record)))

    def decode(self, topic: str, value: bytes | None) -> dict[str, Any]:
        """One record from bytes, in the shape that this package knows, whichever version wrote it.

        Raises:
            Malformed: not framed, cut off, or not of this topic's type.
            UnknownSchema: the registry does not know its schema id.
            RegistryUnavailable: the schema is not cached and the registry does not answer, or the record is sealed and
                its key cannot be had (`KeysUnavailable`).
        """
        if value is None or len(value) < HEADER.size:
            raise Malformed("shorter than the five-byte header of the wire format")
        magic, schema_id = HEADER.unpack_from(value)
        if magic != MAGIC:
            raise Malformed(f"starts with byte {magic & 0xFF:#04x}, not with 0x00: not in the Confluent wire format")
        writer = self._writers.get(schema_id) or self._look_up_writer(schema_id)
        body = io.BytesIO(value)
        body.seek(HEADER.size)
        reader = None if self._is_ours(topic, schema_id, writer) else self._parsed[topic]
        try:
            record = fastavro.schemaless_reader(body, writer, reader)
        except Exception as error:  # corrupt bytes provoke any exception
            raise Malformed(
                f"schema {schema_id} does not read as {TOPICS[topic].schema}: {told(error)}"[:300]
            ) from error
        if body.tell() != len(value):
            raise Malformed(f"{len(value) - body.tell()} bytes after the end of the record")
        return self._open(topic, writer, cast(dict[str, Any], record))

    def _open(self, topic: str, writer: ParsedSchema, record: dict[str, Any]) -> dict[str, Any]:
        if self._sealing is not None and topic in SEALED_TOPICS and record["seal_key"] is not None:
            return self._sealing.open(topic, writer, record)
        return record

    def _is_ours(self, topic: str, schema_id: int, writer: ParsedSchema) -> bool:
        key = topic, schema_id
        if key not in self._same:
            self._same[key] = writer == self._parsed[topic]
        return self._same[key]

    def _look_up_id(self, key: tuple[str, str | None]) -> bytes:
        topic, text = key
        written = text or schema_text(TOPICS[topic].schema)
        found = self._ask(lambda: self._client.look_up(TOPICS[topic].subject, written))
        if found is None:
            raise NotRegistered(
                f"the schema of {topic} is not registered at {self._url}: run `stepstream topics apply`"
            )
        self._ids[key] = HEADER.pack(MAGIC, found)
        return self._ids[key]

    def _look_up_writer(self, schema_id: int) -> ParsedSchema:
        if time.monotonic() - self._unknown.get(schema_id, -FORGET_UNKNOWN_S) < FORGET_UNKNOWN_S:
            raise UnknownSchema(f"no schema {schema_id} in the registry")
        found = self._ask(lambda: self._client.schema(schema_id))
        if found is None:
            self._unknown[schema_id] = time.monotonic()
            raise UnknownSchema(f"no schema {schema_id} in the registry")
        parsed = fastavro.parse_schema(json.loads(found))
        self._writers[schema_id] = parsed
        return parsed

    def _ask(self, call: Any) -> Any:
        """The registry's answer; None where it says that there is no such thing."""
        try:
            return call()
        except RegistryRefused as error:
            if error.status == 404:
                return None
            raise RegistryUnavailable(f"schema registry at {self._url}: {error}") from error
        except Exception as error:  # whatever a connection dies of, and an answer that is none
            raise RegistryUnavailable(f"schema registry at {self._url} does not answer: {error!r}") from error
