"""Seal a record: encrypt its personal fields into one blob, under a key of each person. Pure.

The blob is an Avro record of the personal fields. Its schema is derived from the record's schema, so every reader of
the record can read the blob, across schema versions. The fields left in the clear are empty but valid, so a program
without the key reads an ordinary record. An erasure destroys the key, and every reader gets that empty record
(`is_erased`).

A record that names several persons is encrypted once with each key, in nested layers: destroying any key erases the
record. `seal_key` then names all keys, sorted and joined by `+`, from the innermost layer out. Older releases look for
one key of that name, find none, and treat the record as erased.
"""

import io
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import fastavro
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stepstream.schemas import schema
from stepstream.topics.avro_writer import compile_writer
from stepstream.topics.catalogue import TOPICS

FORMAT = 1
_NONCE_BYTES = 12
_ERASED = "erased"
_JOINT = "+"

_PERSONAL_IN_STEPS = ("tool_calls", "error", "demonstration")
"""Personal fields of each entry of a record's `steps`."""
_AFTER_STEPS = frozenset({"conversations", "other_users"})
"""Personal fields that follow those of `steps` in the blob: they were added later."""


class SealBroken(Exception):
    """A blob was changed, belongs to another record, or has an unknown format."""


class Layout:
    """The personal fields of one schema version of a record, with the schema of the blob."""

    def __init__(self, parsed: Any, personal: Sequence[str]) -> None:
        """Derive the blob's schema.

        Args:
            parsed: the record's schema from `fastavro.parse_schema`.
            personal: names of the personal fields, `Topic.personal`; those that the schema lacks are skipped.
        """
        self._fields = {field["name"]: field for field in parsed["fields"]}
        self.personal = [name for name in personal if name in self._fields]
        named = parsed["__named_schemas"]
        fields = [_blob_field(self._fields[name]) for name in self.personal if name not in _AFTER_STEPS]
        self.empty_in_steps: dict[str, Any] = {}
        """Values in the clear for the personal fields of each entry of `steps`; empty: the record has no `steps`."""
        if "steps" in self._fields:
            entry = named[_by_name(self._fields["steps"]["type"])["items"]]
            entry_fields = {field["name"]: field for field in entry["fields"]}
            inside = [entry_fields[name] for name in _PERSONAL_IN_STEPS if name in entry_fields]
            self.empty_in_steps = {field["name"]: _empty(field) for field in inside}
            record = {"type": "record", "name": "SealedEntry", "fields": [_blob_field(field) for field in inside]}
            fields.append({"name": "steps", "type": {"type": "array", "items": record}})
        fields += [_blob_field(self._fields[name]) for name in self.personal if name in _AFTER_STEPS]
        blob = {"type": "record", "name": f"Sealed{parsed['name'].rpartition('.')[2]}", "fields": fields}
        self.blob = fastavro.parse_schema(blob, named_schemas=dict(named))
        self._write = compile_writer(self.blob)
        self.empty = {name: _empty(self._fields[name]) for name in self.personal}
        """Values in the clear for the personal fields; the same for all records."""

    def write(self, record: Mapping[str, Any]) -> bytes:
        """Encode the personal fields of a record; raise any exception for a value that does not match the schema."""
        try:
            return self._write(record)
        except Exception:  # fastavro names the fault, or accepts types that the compiled writer rejects
            out = io.BytesIO()
            fastavro.schemaless_writer(out, self.blob, dict(record))
            return out.getvalue()


@cache
def layout_of(topic: str) -> Layout:
    """Return the layout of a topic by this package's schema."""
    return Layout(fastavro.parse_schema(schema(TOPICS[topic].schema)), TOPICS[topic].personal)


def is_erased(record: Mapping[str, Any]) -> bool:
    """Return True if a decoded record was sealed under a destroyed key: its personal fields stay empty for ever."""
    return record.get("seal_key") is not None


def persons_of(record: Mapping[str, Any]) -> list[str]:
    """Return each person named in a record of a sealed topic, once."""
    user, others = record["user"], record.get("other_users")
    if not others:
        return [user] if user else []
    return [each for each in dict.fromkeys((user, *others)) if each]


def key_ids(seal_key: str | None) -> list[str]:
    """Return the ids of the keys in a `seal_key`, all of which are needed to open the record; empty for None."""
    return [] if seal_key is None else seal_key.split(_JOINT)


def seal(layout: Layout, topic: str, record: Mapping[str, Any], ciphers: Mapping[str, AESGCM]) -> dict[str, Any]:
    """Return the record with its personal fields encrypted.

    Args:
        layout: layout of the schema that encodes the record.
        topic: destination topic.
        record: the record. A field that does not match its schema raises any exception.
        ciphers: a key of each person by key id, at least one, in any order.
    """
    sealed = without_personal_fields(layout, record)
    names = sorted(ciphers)
    seal_key = _JOINT.join(names)
    bound_to = _bound_to(topic, record, seal_key)
    hidden = layout.write(record)
    for name in names:
        nonce = os.urandom(_NONCE_BYTES)
        hidden = nonce + ciphers[name].encrypt(nonce, hidden, bound_to)
    sealed["seal_key"], sealed["sealed"] = seal_key, bytes([FORMAT]) + hidden
    return sealed


def without_personal_fields(layout: Layout, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with empty personal fields."""
    plain = _with_empty(record, layout.empty)
    if layout.empty_in_steps:
        plain["steps"] = [_with_empty(entry, layout.empty_in_steps) for entry in record["steps"]]
    return plain


def open_sealed(
    written: Layout, known: Layout, topic: str, record: dict[str, Any], ciphers: Mapping[str, AESGCM]
) -> dict[str, Any]:
    """Decrypt the personal fields of a record in place.

    Args:
        written: layout of the writer's schema.
        known: layout of the reader's schema.
        topic: source topic.
        record: a sealed record.
        ciphers: all keys in `seal_key`, by key id.

    Raises:
        SealBroken: the blob was changed or does not belong to the record.
    """
    blob: bytes = record["sealed"]
    if len(blob) <= 1 + _NONCE_BYTES or blob[0] != FORMAT:
        raise SealBroken("the sealed part is cut off, or of a format that this version does not know")
    bound_to = _bound_to(topic, record, record["seal_key"])
    hidden = blob[1:]
    try:
        for name in reversed(key_ids(record["seal_key"])):
            hidden = ciphers[name].decrypt(hidden[:_NONCE_BYTES], hidden[_NONCE_BYTES:], bound_to)
    except (InvalidTag, ValueError):  # ValueError: too short for a nonce and a tag
        raise SealBroken("the sealed part was changed or belongs to another record") from None
    record["seal_key"] = record["sealed"] = None
    return restore(written, known, record, hidden)


def restore(written: Layout, known: Layout, record: dict[str, Any], blob: bytes) -> dict[str, Any]:
    """Set the personal fields of a record, in place, from their Avro record.

    Raises:
        SealBroken: the blob does not belong to the record.
    """
    personal: Any = fastavro.schemaless_reader(io.BytesIO(blob), written.blob, known.blob)
    steps = personal.pop("steps", None)
    if steps is not None:
        if len(steps) != len(record["steps"]):
            raise SealBroken("the sealed part has another number of steps than the record")
        for entry, inside in zip(record["steps"], steps, strict=True):
            entry.update(inside)
    record.update(personal)
    return record


def mark_erased(record: dict[str, Any]) -> dict[str, Any]:
    """Mark a record whose key is destroyed as erased and untrainable, in place."""
    record["sealed"] = record["claim"] = None
    governed = record.get("governed")
    if governed is not None:
        governed["trainable"] = False
        governed["flags"] = _with_erased(governed["flags"])
    if "steps" in record:
        record["trainable"] = False
        record["flags"] = _with_erased(record["flags"])
        for step in record["steps"]:
            step["trainable"] = False
    return record


def _empty(field: Mapping[str, Any]) -> Any:
    """Return the value in the clear for a personal field; `_with_empty` treats `error`."""
    kind = field["type"]
    if isinstance(kind, dict) and kind["type"] == "array":
        return []
    return {"role": "assistant"} if field["name"] == "response" else None


def _with_empty(record: Mapping[str, Any], empty: Mapping[str, Any]) -> dict[str, Any]:
    plain = {**record, **empty}
    if "error" in empty and record.get("error") is not None:
        plain["error"] = _ERASED  # the fact of the failure stays known
    return plain


def _with_erased(flags: list[str]) -> list[str]:
    return flags if _ERASED in flags else [*flags, _ERASED]


def _bound_to(topic: str, record: Mapping[str, Any], seal_key: str) -> bytes:
    """Return the associated data of a blob: it cannot be opened in another record."""
    return "\x1f".join((topic, record["event_id"], seal_key)).encode("utf-8", "surrogatepass")


def _blob_field(field: Mapping[str, Any]) -> dict[str, Any]:
    return {**field, "type": _by_name(field["type"])}


def _by_name(kind: Any) -> Any:
    """Return a type with every named type replaced by its name."""
    if isinstance(kind, list):
        return [_by_name(branch) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    if "name" in kind:
        return kind["name"]
    return {key: _by_name(value) if key in ("items", "values") else value for key, value in kind.items()}
