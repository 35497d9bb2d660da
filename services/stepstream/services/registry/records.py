"""Encode and decode the schemas topic's records: Confluent's JSON keys and values, which its registry can read too.

One kind is Stepstream's own: `ID` keeps the highest assigned id after the permanent deletion of its record. So no id
ever means two schemas.
"""

import json
from dataclasses import dataclass
from typing import Any

from stepstream.services.registry.compatibility import Level

TOPIC = "_schemas"


class RecordError(ValueError):
    """The record is neither Stepstream's nor one of Confluent's for Avro."""


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """One version of a subject."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaValue:
    """The schema of a version; `deleted`: softly."""

    id: int
    schema: str
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class DeleteKey:
    """The soft deletion of a subject; the value is the last version that it covers."""

    subject: str


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The compatibility level of a subject, or of all (None)."""

    subject: str | None


@dataclass(frozen=True, slots=True)
class IdKey:
    """The highest id assigned so far."""


Key = SchemaKey | DeleteKey | ConfigKey | IdKey
Value = SchemaValue | Level | int
RegistryRecord = tuple[Key, Value | None]
"""None is a tombstone."""


def encode(key: Key, value: Value | None) -> tuple[bytes, bytes | None]:
    """Encode a record; equal keys give equal bytes, because compaction compares bytes."""
    body: dict[str, Any]
    match key, value:
        case SchemaKey(subject, version), _:
            head = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
            body = (
                {
                    "subject": subject,
                    "version": version,
                    "id": value.id,
                    "schema": value.schema,
                    "deleted": value.deleted,
                }
                if isinstance(value, SchemaValue)
                else {}
            )
        case DeleteKey(subject), _:
            head = {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
            body = {"subject": subject, "version": value}
        case ConfigKey(subject_or_all), _:
            head = {"keytype": "CONFIG", "subject": subject_or_all, "magic": 0}
            body = {"compatibilityLevel": str(value)}
        case IdKey(), _:
            head = {"keytype": "ID", "magic": 0}
            body = {"id": value}
    return _dump(head), None if value is None else _dump(body)


def decode(key: bytes | None, value: bytes | None) -> RegistryRecord | None:
    """Decode a record; None: a kind that changes nothing (for example NOOP or MODE).

    Raises:
        RecordError: the record is malformed or unsupported.
    """
    try:
        head = json.loads(key or b"")
        body = None if value is None else json.loads(value)
        match head["keytype"]:
            case "SCHEMA":
                schema_key = SchemaKey(str(head["subject"]), int(head["version"]))
                return schema_key, None if body is None else _schema(body)
            case "DELETE_SUBJECT":
                return DeleteKey(str(head["subject"])), None if body is None else int(body["version"])
            case "CONFIG":
                is_global = head["subject"] is None
                return ConfigKey(None if is_global else str(head["subject"])), None if body is None else Level(
                    body["compatibilityLevel"]
                )
            case "ID":
                return IdKey(), None if body is None else int(body["id"])
            case _:
                return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordError(f"{type(error).__name__}: {error}") from None


def _schema(body: dict[str, Any]) -> SchemaValue:
    if body.get("schemaType", "AVRO") != "AVRO":
        raise RecordError(f"schema type {body['schemaType']} is not supported")
    return SchemaValue(int(body["id"]), str(body["schema"]), bool(body.get("deleted", False)))


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
