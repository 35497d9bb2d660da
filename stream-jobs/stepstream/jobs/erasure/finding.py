"""Looks through the log for what is a person's, without opening anything that is sealed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from stepstream.config import Settings
from stepstream.topics.codec import Codec, CodecError
from stepstream.topics.consumer import Event, EventConsumer

INTAKE = ("steps", "feedback")
DEAD_LETTERS = "dead-letters"
LABELS = "labeled-trajectories"
GOVERNED = ("governed-steps", "governed-feedback", LABELS)
_BATCH = 2000

Say = Callable[[str], None]


@dataclass(frozen=True)
class Person:
    """Whom it is about."""

    tenant: str
    user: str

    def owns(self, record: Any) -> bool:
        """Whether a record names them in the clear."""
        return bool(record["user"] == self.user and record["tenant"] == self.tenant)


@dataclass
class Found:
    """What was found, without a name or a word of theirs: it may be kept."""

    key_ids: set[str] = field(default_factory=set)
    trajectories: set[str] = field(default_factory=set)
    labels: set[tuple[int, int]] = field(default_factory=set)
    """Partition and offset of their labelled trajectories."""
    sealed: int = 0
    """Records sealed under their keys, which are unreadable once the keys are destroyed."""
    clear: dict[tuple[str, int], int] = field(default_factory=dict)
    """Newest offset of a record in the clear, by topic and partition, where such records can be deleted."""
    beyond: int = 0
    """Records in the clear on governed topics, which were written before records were sealed: not erased by this."""

    def merge(self, earlier: "Found") -> None:
        """Adds what an attempt that was cut off had found."""
        self.key_ids |= earlier.key_ids
        self.trajectories |= earlier.trajectories
        self.labels |= earlier.labels

    def pack(self) -> bytes:
        """What a later attempt cannot find again, as JSON."""
        return orjson.dumps(
            {
                "key_ids": sorted(self.key_ids),
                "trajectories": sorted(self.trajectories),
                "labels": sorted(self.labels),
            }
        )

    @staticmethod
    def unpack(packed: bytes) -> "Found":
        """The reverse of `pack`."""
        stored = orjson.loads(packed)
        labels = {(partition, offset) for partition, offset in stored["labels"]}
        return Found(set(stored["key_ids"]), set(stored["trajectories"]), labels)


def find(settings: Settings, person: Person, key_ids: Iterable[str], say: Say) -> Found:
    """Reads the topics that hold what people say, up to where they end now.

    Args:
        settings: where the log is.
        person: whom to look for.
        key_ids: their keys.
        say: told how far it is.

    Raises:
        KafkaException: a topic does not exist, or no broker answers.
    """
    found = Found(key_ids=set(key_ids))
    codec = Codec(settings.schema_registry)  # opens nothing: the key's name tells whose a record is
    try:
        for topic in (*INTAKE, *GOVERNED, DEAD_LETTERS):
            records = 0
            with EventConsumer(settings.kafka, codec) as consumer:
                consumer.follow([topic])
                while not consumer.caught_up():
                    events = consumer.poll(_BATCH, 0.2)
                    for event in events:
                        _note(found, person, event, codec)
                    records += len(events)
            say(f"looked through {records} records of {topic}")
    finally:
        codec.close()
    return found


def _note(found: Found, person: Person, event: Event, codec: Codec) -> None:
    record = event.record
    if event.topic == DEAD_LETTERS:
        if record is not None and _letter_is_theirs(found, person, record, codec):
            _note_clear(found, event)
    elif record is None:
        if event.topic in INTAKE and _mentions(event.value, person):
            _note_clear(found, event)
    elif record["seal_key"] in found.key_ids:
        found.sealed += 1
        _note_trajectory(found, event)
    elif person.owns(record):
        _note_trajectory(found, event)
        if event.topic in INTAKE:
            _note_clear(found, event)
        else:
            found.beyond += 1


def _note_trajectory(found: Found, event: Event) -> None:
    found.trajectories.add(event.record["trajectory_id"])
    if event.topic == LABELS:
        found.labels.add((event.partition, event.offset))


def _note_clear(found: Found, event: Event) -> None:
    place = event.topic, event.partition
    found.clear[place] = max(found.clear.get(place, -1), event.offset)


def _letter_is_theirs(found: Found, person: Person, letter: Any, codec: Codec) -> bool:
    """Whether the refused value names them in the clear; one that cannot be read is searched for the name."""
    value = letter["value"] or b""
    try:
        record = codec.decode(letter["topic"], value)
    except (CodecError, KeyError):
        return _mentions(value, person)
    if record.get("seal_key") in found.key_ids:
        found.sealed += 1
        return False
    return "user" in record and person.owns(record)


def _mentions(value: bytes, person: Person) -> bool:
    return person.user.encode("utf-8", "surrogatepass") in value


def trained_on(checkpoints: Sequence[Any], labels: set[tuple[int, int]]) -> tuple[list[str], list[str]]:
    """Versions that trained on some of these labels, and those that descend from them, as `model@version`."""
    direct, descend = [], []
    touched: set[tuple[str, int]] = set()
    for checkpoint in sorted(checkpoints, key=lambda each: (each["model"], each["version"])):
        places = {
            place
            for update in checkpoint["inputs"]
            for place in zip(update["partitions"], update["offsets"], strict=True)
        }
        named = f"{checkpoint['model']}@{checkpoint['version']}"
        parent = checkpoint["parent_version"]
        if places & labels:
            direct.append(named)
        elif parent is not None and (checkpoint["model"], parent) in touched:
            descend.append(named)
        else:
            continue
        touched.add((checkpoint["model"], checkpoint["version"]))
    return direct, descend
