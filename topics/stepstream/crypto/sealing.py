"""Sealing: the personal fields of a record as one encrypted blob, under a key of each person's own.

`seal` and `open_sealed` are pure. The blob is an Avro record made of the personal fields, by a schema derived from
the schema of the whole record: whoever can read the record can read the blob, in each version of the schema. What is
left in the clear is empty but valid, so that programs without the key see a record like any other. Destroying the key
leaves exactly that for everybody: the record is erased (`is_erased`).

A record of several persons is encrypted once with the key of each, one layer in the other: destroying any of the keys
erases it. `seal_key` then names all of them, sorted and joined by `+`, from the innermost layer out. Releases that knew
one key only look for a key of that name, find none, and take the record for erased.
"""

import io
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import fastavro
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stepstream.schemas import schema
from stepstream.topics.avro_writer import compiled
from stepstream.topics.catalogue import TOPICS

FORMAT = 1
_NONCE_BYTES = 12
_ERASED = "erased"
_JOINT = "+"

# What is new comes last: earlier releases read a blob up to there.
_STEP = (
    "user",
    "messages",
    "prompt_shared_digest",
    "prompt_token_ids",
    "response",
    "response_token_ids",
    "response_logprobs",
    "loss_mask",
    "policy_spans",
    "error",
    "tool_definitions",
)
_FEEDBACK = ("user", "category", "comment", "demonstration")
_TRAJECTORY = ("user", "sequences", "signature", "conversations", "other_users")
_INSIDE_STEPS = ("tool_calls", "error", "demonstration")
"""Personal fields of each entry of `steps`, where a record has that."""
_BEHIND_STEPS = frozenset({"conversations", "other_users"})
"""Personal fields that stand in the blob behind those inside `steps`: they are newer."""
_PERSONAL = {"Step": _STEP, "Feedback": _FEEDBACK, "LabeledTrajectory": _TRAJECTORY}

SEALED_TOPICS = {topic.name: _PERSONAL[topic.schema] for topic in TOPICS.values() if topic.schema in _PERSONAL}
"""Topics whose records are sealed where they have a `user`, and their personal fields."""


class SealBroken(Exception):
    """A blob that was changed, belongs to another record, or is of a format that this version does not know."""


class Layout:
    """The personal fields of one version of a record's schema, and the blob's schema."""

    def __init__(self, parsed: Any) -> None:
        """`parsed` is the record's schema as fastavro parsed it; it must be one of a sealed topic."""
        self._fields = {field["name"]: field for field in parsed["fields"]}
        self.personal = [name for name in _PERSONAL[parsed["name"].rpartition(".")[2]] if name in self._fields]
        named = parsed["__named_schemas"]
        fields = [self._of_blob(self._fields[name]) for name in self.personal if name not in _BEHIND_STEPS]
        self.empty_inside: dict[str, Any] = {}
        """The same for those inside `steps`."""
        if "steps" in self._fields:
            entry = named[_referenced(self._fields["steps"]["type"])["items"]]
            inner = {field["name"]: field for field in entry["fields"]}
            inside = [inner[name] for name in _INSIDE_STEPS if name in inner]
            self.empty_inside = {field["name"]: _empty(field) for field in inside}
            record = {"type": "record", "name": "SealedEntry", "fields": [self._of_blob(field) for field in inside]}
            fields.append({"name": "steps", "type": {"type": "array", "items": record}})
        fields += [self._of_blob(self._fields[name]) for name in self.personal if name in _BEHIND_STEPS]
        blob = {"type": "record", "name": f"Sealed{parsed['name'].rpartition('.')[2]}", "fields": fields}
        self.blob = fastavro.parse_schema(blob, named_schemas=dict(named))
        self._write = compiled(self.blob)
        self.empty = {name: _empty(self._fields[name]) for name in self.personal}
        """What stands in the clear for the personal fields; of all records the same."""

    def write(self, record: Mapping[str, Any]) -> bytes:
        """The personal fields of a record; raises whatever a value that does not fit provokes."""
        try:
            return self._write(record)
        except Exception:  # fastavro says what is wrong, or takes what is merely unusual
            out = io.BytesIO()
            fastavro.schemaless_writer(out, self.blob, dict(record))
            return out.getvalue()

    @staticmethod
    def _of_blob(field: Mapping[str, Any]) -> dict[str, Any]:
        return {**field, "type": _referenced(field["type"])}


def is_erased(record: Mapping[str, Any]) -> bool:
    """Whether a decoded record was sealed under a key that is destroyed: its personal fields are empty for good."""
    return record.get("seal_key") is not None


def persons_of(record: Mapping[str, Any]) -> list[str]:
    """Everybody whom a record of a sealed topic names, each once; empty where that is nobody."""
    user, others = record["user"], record.get("other_users")
    if not others:
        return [user] if user else []
    return [each for each in dict.fromkeys((user, *others)) if each]


def key_ids(seal_key: str | None) -> list[str]:
    """Ids of the keys that a `seal_key` names, all of which it takes to open the record; empty for None."""
    return [] if seal_key is None else seal_key.split(_JOINT)


def seal(layout: Layout, topic: str, record: Mapping[str, Any], ciphers: Mapping[str, AESGCM]) -> dict[str, Any]:
    """The record with its personal fields encrypted.

    Args:
        layout: of the schema that the record is written with.
        topic: topic that it goes to.
        record: the record; any field that does not fit its schema raises.
        ciphers: a key of each person in it by its id, at least one; their order does not matter.
    """
    sealed = emptied(layout, record)
    names = sorted(ciphers)
    seal_key = _JOINT.join(names)
    bound_to = _bound_to(topic, record, seal_key)
    hidden = layout.write(record)
    for name in names:
        nonce = os.urandom(_NONCE_BYTES)
        hidden = nonce + ciphers[name].encrypt(nonce, hidden, bound_to)
    sealed["seal_key"], sealed["sealed"] = seal_key, bytes([FORMAT]) + hidden
    return sealed


def emptied(layout: Layout, record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without what is personal in it."""
    plain = _emptied(record, layout.empty)
    if layout.empty_inside:
        plain["steps"] = [_emptied(entry, layout.empty_inside) for entry in record["steps"]]
    return plain


def open_sealed(
    written: Layout, known: Layout, topic: str, record: dict[str, Any], ciphers: Mapping[str, AESGCM]
) -> dict[str, Any]:
    """Puts the personal fields back, in place.

    Args:
        written: layout of the schema that the record was written with.
        known: layout of the schema that it was read as.
        topic: topic that the record was read from.
        record: a sealed record.
        ciphers: of all the keys that `seal_key` names, by their ids.

    Raises:
        SealBroken: the blob is not what was sealed.
    """
    blob: bytes = record["sealed"]
    if len(blob) <= 1 + _NONCE_BYTES or blob[0] != FORMAT:
        raise SealBroken("the sealed part is cut off, or of a format that this version does not know")
    bound_to = _bound_to(topic, record, record["seal_key"])
    hidden = blob[1:]
    try:
        for name in reversed(key_ids(record["seal_key"])):
            hidden = ciphers[name].decrypt(hidden[:_NONCE_BYTES], hidden[_NONCE_BYTES:], bound_to)
    except (InvalidTag, ValueError):  # or too short to be a nonce and what it goes with
        raise SealBroken("the sealed part was changed or belongs to another record") from None
    personal: Any = fastavro.schemaless_reader(io.BytesIO(hidden), written.blob, known.blob)
    steps = personal.pop("steps", None)
    if steps is not None:
        if len(steps) != len(record["steps"]):
            raise SealBroken("the sealed part has another number of steps than the record")
        for entry, inside in zip(record["steps"], steps, strict=True):
            entry.update(inside)
    record.update(personal)
    record["seal_key"] = record["sealed"] = None
    return record


def erase(record: dict[str, Any]) -> dict[str, Any]:
    """Marks, in place, a record whose key is destroyed: nothing is left to open and nothing to train on."""
    record["sealed"] = None
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
    """What stands in the clear for a personal field; see `_emptied` for errors."""
    kind = field["type"]
    if isinstance(kind, dict) and kind["type"] == "array":
        return []
    return {"role": "assistant"} if field["name"] == "response" else None


def _emptied(record: Mapping[str, Any], empty: Mapping[str, Any]) -> dict[str, Any]:
    plain = {**record, **empty}
    if "error" in empty and record.get("error") is not None:
        plain["error"] = _ERASED  # that a call failed stays known
    return plain


def _with_erased(flags: list[str]) -> list[str]:
    return flags if _ERASED in flags else [*flags, _ERASED]


def _bound_to(topic: str, record: Mapping[str, Any], seal_key: str) -> bytes:
    """What a blob belongs to: moved to another record, it does not open."""
    return "\x1f".join((topic, record["event_id"], seal_key)).encode("utf-8", "surrogatepass")


def _referenced(kind: Any) -> Any:
    """A type with every named type in it told by its name alone."""
    if isinstance(kind, list):
        return [_referenced(branch) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    if "name" in kind:
        return kind["name"]
    return {key: _referenced(value) if key in ("items", "values") else value for key, value in kind.items()}


@cache
def layout_of(topic: str) -> Layout:
    """The layout by this package's own schema."""
    return Layout(fastavro.parse_schema(schema(TOPICS[topic].schema)))
