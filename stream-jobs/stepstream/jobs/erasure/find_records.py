"""Find the records of a person on the log without decrypting any."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import orjson

from stepstream.config import Settings
from stepstream.crypto.sealing import key_ids
from stepstream.topics.catalogue import (
    DEAD_LETTERS,
    FEEDBACK,
    GOVERNED_FEEDBACK,
    GOVERNED_STEPS,
    LABELED_TRAJECTORIES,
    OPEN_TRACES,
    STEPS,
    TOPICS,
)
from stepstream.topics.codec import Codec, CodecError
from stepstream.topics.consumer import Event, EventConsumer

INTAKE = (STEPS, FEEDBACK)
GOVERNED = (GOVERNED_STEPS, GOVERNED_FEEDBACK, LABELED_TRAJECTORIES)
"""Labels are last: the search needs the owners of their steps."""
_BATCH = 2000
_REPORTED_EVERY = 100_000

Say = Callable[[str], None]


@dataclass(frozen=True)
class Person:
    """The person to erase."""

    tenant: str
    user: str

    def owns(self, record: Any) -> bool:
        """Return True if a readable record names this person."""
        return bool(record["user"] == self.user and record["tenant"] == self.tenant)


@dataclass
class Findings:
    """Ids and offsets of a person's records. They contain no name and no content, so they may be stored."""

    key_ids: set[str] = field(default_factory=set)
    """The person's keys."""
    trajectories: set[str] = field(default_factory=set)
    """Trajectories in which the person took part, at least by feedback."""
    own_trajectories: set[str] = field(default_factory=set)
    """Trajectories whose steps name the person. Records there that name nobody belong to the person too."""
    labels: set[tuple[int, int]] = field(default_factory=set)
    """Partition and offset of the person's labelled trajectories."""
    steps_of_others: set[str] = field(default_factory=set)
    """Ids of the readable governed steps in `own_trajectories` that belong to other people."""
    sealed: int = 0
    """Number of records sealed under the person's keys."""
    unsealed: dict[tuple[str, int], int] = field(default_factory=dict)
    """Newest offset of an unsealed record by (topic, partition), on topics whose records can be deleted."""
    remaining: Counter[str] = field(default_factory=Counter)
    """Number of readable records, by topic, that the erasure leaves: unsealed records on governed topics that are older
    than sealing or name nobody; labels of a shared trajectory that are sealed under another person's key alone; open
    traces that are not finished."""

    def merge(self, earlier: "Findings") -> None:
        """Add the findings of an interrupted attempt."""
        self.key_ids |= earlier.key_ids
        self.trajectories |= earlier.trajectories
        self.own_trajectories |= earlier.own_trajectories
        self.labels |= earlier.labels

    def pack(self) -> bytes:
        """Serialize, as JSON, the findings that need the keys."""
        return orjson.dumps(
            {
                "key_ids": sorted(self.key_ids),
                "trajectories": sorted(self.trajectories),
                "own": sorted(self.own_trajectories),
                "labels": sorted(self.labels),
            }
        )

    @staticmethod
    def unpack(packed: bytes) -> "Findings":
        """Reverse `pack`."""
        stored = orjson.loads(packed)
        labels = {(partition, offset) for partition, offset in stored["labels"]}
        # Earlier versions did not store `own`: any of the trajectories may be one.
        own = set(stored.get("own", stored["trajectories"]))
        return Findings(set(stored["key_ids"]), set(stored["trajectories"]), own, labels)


@dataclass(frozen=True, slots=True)
class Search:
    """Search for the records of one person."""

    person: Person
    found: Findings
    """The person's keys and earlier findings; the search adds to them."""
    other_key_ids: Set[str]
    """Ids of other people's keys."""


class SearchIndex:
    """Select the searches that a record may concern, so that the cost of a record does not grow with the persons."""

    def __init__(self, searches: Sequence[Search]) -> None:
        self._all = searches
        self._by_owner = {(search.person.tenant, search.person.user): search for search in searches}
        self._by_key = {key_id: search for search in searches for key_id in search.found.key_ids}

    def concerned(self, event: Event) -> list[Search]:
        """Return the searches that `add_event` may add an event to; all, for topics with text that names nobody."""
        record = event.record
        if record is None or event.topic in (DEAD_LETTERS, OPEN_TRACES):
            return list(self._all)
        found = [self._by_key[key_id] for key_id in key_ids(record.get("seal_key")) if key_id in self._by_key]
        owner = self._by_owner.get((record["tenant"], record["user"]))
        concerned = found if owner is None or owner in found else [*found, owner]
        return [search for place, search in enumerate(concerned) if search not in concerned[:place]]

    def by_trajectory(self) -> dict[str, list[Search]]:
        """Return the searches by id of their own trajectories."""
        searches: dict[str, list[Search]] = {}
        for search in self._all:
            for trajectory_id in search.found.own_trajectories:
                searches.setdefault(trajectory_id, []).append(search)
        return searches


def find_records(settings: Settings, searches: Sequence[Search], say: Say) -> None:
    """Read the topics with people's content up to their present end, and add the persons' records to their findings.

    Two passes for all persons together: a record that names nobody belongs to the person of its trajectory, whose steps
    may come later. The second pass is left out if no person has a trajectory.

    Args:
        settings: addresses of Kafka and the registry.
        searches: one for each person.
        say: receives lines about the progress.

    Raises:
        KafkaException: a topic does not exist, or no broker answers.
    """
    codec = Codec(settings)  # without keys: the id of a record's key identifies its owner
    try:
        index = SearchIndex(searches)
        for topic in (*INTAKE, *GOVERNED, DEAD_LETTERS, OPEN_TRACES):
            for event in _reported(read_events(settings, codec, topic), f"searched {{}} records of {topic}", say):
                for search in index.concerned(event):
                    add_event(search.found, search.person, event, codec)
        own = index.by_trajectory()
        for topic in (*INTAKE, *GOVERNED) if own else ():
            line = f"searched {{}} records of {topic} for trajectories"
            for event in _reported(read_events(settings, codec, topic), line, say):
                for search in own.get(event.record["trajectory_id"], ()) if event.record is not None else ():
                    add_by_trajectory(search.found, search.person, event, search.other_key_ids)
    finally:
        codec.close()


def _reported(events: Iterable[Event], line: str, say: Say) -> Iterator[Event]:
    """Yield events, and report their number now and then, and at the end."""
    number = 0
    for number, event in enumerate(events, 1):
        yield event
        if number % _REPORTED_EVERY == 0:
            say(line.format(f"{number:,}"))
    say(line.format(f"{number:,}"))


def read_events(settings: Settings, codec: Codec, topic: str) -> Iterator[Event]:
    """Yield the events of a topic up to its present end."""
    with EventConsumer(settings.kafka, codec) as consumer:
        consumer.follow([topic])
        while not consumer.is_caught_up():
            yield from consumer.poll(_BATCH, 0.2)


def add_event(found: Findings, person: Person, event: Event, codec: Codec) -> None:
    """Add an event that names the person or is sealed under one of the person's keys."""
    record = event.record
    if event.topic == OPEN_TRACES:
        if record is not None and record["tenant"] == person.tenant and _mentions(record["payload"], person):
            _add_unsealed(found, event)
    elif event.topic == DEAD_LETTERS:
        if record is not None and _is_letter_of(found, person, record, codec):
            _add_unsealed(found, event)
    elif record is None:
        if event.topic in INTAKE and _mentions(event.value, person):
            _add_unsealed(found, event)
    elif _is_sealed_for(found, record):
        found.sealed += 1
        _add_trajectory(found, event)
    elif person.owns(record):
        _add_trajectory(found, event)
        if event.topic in INTAKE:
            _add_unsealed(found, event)
        else:
            found.remaining[event.topic] += 1


def add_by_trajectory(found: Findings, person: Person, event: Event, other_key_ids: Set[str]) -> None:
    """Add an event with content in one of the person's own trajectories that does not name the person.

    These are unsealed events that name nobody, and labels of a shared trajectory: they contain the person's steps, but
    are sealed under other people's keys alone.
    """
    record = event.record
    if record is None or record["trajectory_id"] not in found.own_trajectories or record["tenant"] != person.tenant:
        return
    if record["user"] is None and record["seal_key"] is None:
        if not _has_content(event.topic, record):
            return
        if event.topic in INTAKE:
            _add_unsealed(found, event)
        else:
            found.remaining[event.topic] += 1
    elif not (_is_sealed_for(found, record) or person.owns(record)):
        readable = other_key_ids >= set(key_ids(record["seal_key"]))
        if event.topic == GOVERNED_STEPS and readable:
            found.steps_of_others.add(record["event_id"])
        elif event.topic == LABELED_TRAJECTORIES and not all(
            step["event_id"] in found.steps_of_others for step in record["steps"]
        ):
            found.labels.add((event.partition, event.offset))
            found.remaining[LABELED_TRAJECTORIES] += readable


def _is_sealed_for(found: Findings, record: Any) -> bool:
    """Return True if a key of the person is needed to decrypt the record."""
    return not found.key_ids.isdisjoint(key_ids(record.get("seal_key")))


def _has_content(topic: str, record: Any) -> bool:
    """Return True if a field is set that would be sealed if the record named a person."""
    if any(step["tool_calls"] for step in record.get("steps", ())):
        return True
    return any(record[name] not in (None, []) for name in TOPICS[topic].personal)


def _add_trajectory(found: Findings, event: Event) -> None:
    found.trajectories.add(event.record["trajectory_id"])
    if not event.topic.endswith("feedback"):
        found.own_trajectories.add(event.record["trajectory_id"])
    if event.topic == LABELED_TRAJECTORIES:
        found.labels.add((event.partition, event.offset))


def _add_unsealed(found: Findings, event: Event) -> None:
    partition = event.topic, event.partition
    found.unsealed[partition] = max(found.unsealed.get(partition, -1), event.offset)


def _is_letter_of(found: Findings, person: Person, letter: Any, codec: Codec) -> bool:
    """Return True if the value in a dead letter names the person; search undecodable values for the name."""
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


def versions_trained_on(checkpoints: Sequence[Any], labels: set[tuple[int, int]]) -> tuple[list[str], list[str]]:
    """Return the versions that trained on some of the labels, and their descendants, as `model@version`."""
    direct, descendants = [], []
    affected: set[tuple[str, int]] = set()
    for checkpoint in sorted(checkpoints, key=lambda each: (each["model"], each["version"])):
        inputs = {
            position
            for update in checkpoint["inputs"]
            for position in zip(update["partitions"], update["offsets"], strict=True)
        }
        name = f"{checkpoint['model']}@{checkpoint['version']}"
        parent = checkpoint["parent_version"]
        if inputs & labels:
            direct.append(name)
        elif parent is not None and (checkpoint["model"], parent) in affected:
            descendants.append(name)
        else:
            continue
        affected.add((checkpoint["model"], checkpoint["version"]))
    return direct, descendants
