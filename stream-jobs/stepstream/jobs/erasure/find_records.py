"""Looks through the log for what is a person's, without opening anything that is sealed."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import orjson

from stepstream.config import Settings
from stepstream.crypto.sealing import SEALED_TOPICS, key_ids
from stepstream.topics.codec import Codec, CodecError
from stepstream.topics.consumer import Event, EventConsumer

INTAKE = ("steps", "feedback")
DEAD_LETTERS = "dead-letters"
STEPS, LABELS = "governed-steps", "labeled-trajectories"
GOVERNED = (STEPS, "governed-feedback", LABELS)
"""The labels last: which steps are whose must be known by then."""
OPEN_TRACES = "open-traces"
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
    """Those in which they took part, if only by feedback."""
    own: set[str] = field(default_factory=set)
    """Those of which steps name them: what names nobody there is about them too."""
    labels: set[tuple[int, int]] = field(default_factory=set)
    """Partition and offset of their labelled trajectories."""
    of_others: set[str] = field(default_factory=set)
    """Ids of governed steps in trajectories of their own that somebody else's are, by what can be read now."""
    sealed: int = 0
    """Records sealed under their keys, which are unreadable once the keys are destroyed."""
    clear: dict[tuple[str, int], int] = field(default_factory=dict)
    """Newest offset of a record in the clear, by topic and partition, where such records can be deleted."""
    left: Counter[str] = field(default_factory=Counter)
    """Records, by topic, that this does not erase: on governed topics those in the clear from before records were
    sealed and those that name nobody; labels of a trajectory that they shared, made when such were under the key of
    one person alone, who is somebody else; open traces that are not told yet."""

    def merge(self, earlier: "Found") -> None:
        """Adds what an attempt that was cut off had found."""
        self.key_ids |= earlier.key_ids
        self.trajectories |= earlier.trajectories
        self.own |= earlier.own
        self.labels |= earlier.labels

    def pack(self) -> bytes:
        """What a later attempt cannot find again, as JSON."""
        return orjson.dumps(
            {
                "key_ids": sorted(self.key_ids),
                "trajectories": sorted(self.trajectories),
                "own": sorted(self.own),
                "labels": sorted(self.labels),
            }
        )

    @staticmethod
    def unpack(packed: bytes) -> "Found":
        """The reverse of `pack`."""
        stored = orjson.loads(packed)
        labels = {(partition, offset) for partition, offset in stored["labels"]}
        # An attempt of an earlier version noted no trajectories of their own: all may be.
        own = set(stored.get("own", stored["trajectories"]))
        return Found(set(stored["key_ids"]), set(stored["trajectories"]), own, labels)


def find(settings: Settings, person: Person, found: Found, others: Set[str], say: Say) -> None:
    """Reads the topics that hold what people say, up to where they end now, and adds what is the person's.

    Twice, since what names nobody is theirs by its trajectory, whose steps may come later.

    Args:
        settings: where the log is.
        person: whom to look for.
        found: their keys, and what is known of them already.
        others: ids of the keys of other people.
        say: told how far it is.

    Raises:
        KafkaException: a topic does not exist, or no broker answers.
    """
    codec = Codec(settings.schema_registry)  # opens nothing: the key's name tells whose a record is
    try:
        for topic in (*INTAKE, *GOVERNED, DEAD_LETTERS, OPEN_TRACES):
            records = 0
            for event in _events(settings, codec, topic):
                note(found, person, event, codec)
                records += 1
            say(f"looked through {records} records of {topic}")
        for topic in (*INTAKE, *GOVERNED) if found.own else ():
            for event in _events(settings, codec, topic):
                note_by_trajectory(found, person, event, others)
    finally:
        codec.close()


def _events(settings: Settings, codec: Codec, topic: str) -> Iterator[Event]:
    with EventConsumer(settings.kafka, codec) as consumer:
        consumer.follow([topic])
        while not consumer.caught_up():
            yield from consumer.poll(_BATCH, 0.2)


def note(found: Found, person: Person, event: Event, codec: Codec) -> None:
    """Adds an event to what was found, where it names the person or is sealed under one of their keys."""
    record = event.record
    if event.topic == OPEN_TRACES:
        if record is not None and record["tenant"] == person.tenant and _mentions(record["payload"], person):
            _note_clear(found, event)
    elif event.topic == DEAD_LETTERS:
        if record is not None and _letter_is_theirs(found, person, record, codec):
            _note_clear(found, event)
    elif record is None:
        if event.topic in INTAKE and _mentions(event.value, person):
            _note_clear(found, event)
    elif _is_sealed_for(found, record):
        found.sealed += 1
        _note_trajectory(found, event)
    elif person.owns(record):
        _note_trajectory(found, event)
        if event.topic in INTAKE:
            _note_clear(found, event)
        else:
            found.left[event.topic] += 1


def note_by_trajectory(found: Found, person: Person, event: Event, others: Set[str]) -> None:
    """Adds an event that says something in a trajectory of the person's own, though it does not name them.

    Such are events in the clear that name nobody, and labels of a trajectory that they share with somebody else whose
    keys alone (of `others`) these are sealed under, though not all steps in them are that person's.
    """
    record = event.record
    if record is None or record["trajectory_id"] not in found.own or record["tenant"] != person.tenant:
        return
    if record["user"] is None and record["seal_key"] is None:
        if not _says_something(event.topic, record):
            return
        if event.topic in INTAKE:
            _note_clear(found, event)
        else:
            found.left[event.topic] += 1
    elif not (_is_sealed_for(found, record) or person.owns(record)):
        readable = others >= set(key_ids(record["seal_key"]))
        if event.topic == STEPS and readable:
            found.of_others.add(record["event_id"])
        elif event.topic == LABELS and not all(step["event_id"] in found.of_others for step in record["steps"]):
            found.labels.add((event.partition, event.offset))
            found.left[LABELS] += readable


def _is_sealed_for(found: Found, record: Any) -> bool:
    """Whether it takes a key of theirs to open it."""
    return not found.key_ids.isdisjoint(key_ids(record.get("seal_key")))


def _says_something(topic: str, record: Any) -> bool:
    """Whether there is something in it that would be sealed if it named somebody."""
    if any(step["tool_calls"] for step in record.get("steps", ())):
        return True
    return any(record[name] not in (None, []) for name in SEALED_TOPICS[topic])


def _note_trajectory(found: Found, event: Event) -> None:
    found.trajectories.add(event.record["trajectory_id"])
    if not event.topic.endswith("feedback"):
        found.own.add(event.record["trajectory_id"])
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
    if _is_sealed_for(found, record):
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
