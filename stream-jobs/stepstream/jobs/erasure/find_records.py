"""Find the records of a person on the log without decrypting any."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from stepstream.crypto.sealing import key_ids
from stepstream.jobs.erasure.findings import Findings, OffsetRange, Person
from stepstream.jobs.erasure.owner_hashes import ANYONE, SubjectOf, hash_key, hash_person, hash_trajectory
from stepstream.jobs.erasure.read_log import INDEXED, INTAKE, Log
from stepstream.jobs.erasure.search_progress import Say
from stepstream.jobs.erasure.selection import PersonIndex, Selection
from stepstream.jobs.erasure.update_index import update_index
from stepstream.topics.catalogue import (
    DEAD_LETTERS,
    GOVERNED_STEPS,
    LABELED_TRAJECTORIES,
    OPEN_TRACES,
    TOPICS,
)
from stepstream.topics.codec import Codec, CodecError
from stepstream.topics.consumer import Event

_NOT_INDEXED = (DEAD_LETTERS, OPEN_TRACES)
"""Their text may name anyone."""


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
        """Return the searches that `add_event` may add an event of an indexed topic to."""
        record = event.record
        if record is None:
            return list(self._all)
        found = [self._by_key[key_id] for key_id in key_ids(record.get("seal_key")) if key_id in self._by_key]
        owner = self._by_owner.get((record["tenant"], record["user"]))
        concerned = found if owner is None or owner in found else [*found, owner]
        return [search for place, search in enumerate(concerned) if search not in concerned[:place]]

    def owners(self, subject_of: SubjectOf) -> set[int]:
        """Return the hashes under which the index has records that `add_event` may add."""
        keys = {hash_key(key_id) for key_id in self._by_key}
        return {ANYONE, *keys, *(hash_person(subject_of(*owner)) for owner in self._by_owner)}

    def by_trajectory(self) -> dict[tuple[str, str], list[Search]]:
        """Return the searches by tenant and id of their own trajectories."""
        searches: dict[tuple[str, str], list[Search]] = {}
        for search in self._all:
            for trajectory_id in search.found.own_trajectories:
                searches.setdefault((search.person.tenant, trajectory_id), []).append(search)
        return searches


def find_records(log: Log, index: PersonIndex, subject_of: SubjectOf, searches: Sequence[Search], say: Say) -> None:
    """Read the persons' records up to the present end of the topics, and add them to their findings.

    1. Read what the index does not cover yet, and add it to the index. Read the topics that are not in the index.
    2. Read the records that are sealed under the persons' keys, or name them, as the index gives them.
    3. Read those in the persons' own trajectories: a record that names nobody belongs to the person of its trajectory,
       whose steps may come later on the log.

    What the index lacks after step 1, the other steps read as a whole. So the findings do not depend on the index.

    Args:
        log: the log.
        index: an index of the log in any state.
        subject_of: gives the keyed digests of persons in the index.
        searches: one for each person.
        say: receives lines about the progress.

    Raises:
        KafkaException: a topic does not exist, or no broker answers.
        ClickHouseError: the index is unavailable.
    """
    persons = SearchIndex(searches)
    bounds = update_index(log, index, subject_of, say)
    for topic in _NOT_INDEXED:
        for event in log.read(topic):
            for search in searches:
                add_event(search.found, search.person, event, log.codec)
    selection = Selection.of(bounds, index.find(persons.owners(subject_of)))
    say(f"reading {selection.size():,} records")
    for topic in INDEXED:
        for event in log.read_selected(topic, selection):
            for search in persons.concerned(event):
                add_event(search.found, search.person, event, log.codec)
    own = persons.by_trajectory()
    if not own:
        return
    selection = Selection.of(bounds, index.find({ANYONE, *(hash_trajectory(*one) for one in own)}))
    say(f"reading {selection.size():,} records by their trajectories")
    for topic in INDEXED:
        for event in log.read_selected(topic, selection):
            record = event.record
            for search in own.get((record["tenant"], record["trajectory_id"]), ()) if record is not None else ():
                add_by_trajectory(search.found, search.person, event, search.other_key_ids)


def add_event(found: Findings, person: Person, event: Event, codec: Codec) -> None:
    """Add an event that names the person or is sealed under one of the person's keys."""
    record = event.record
    if event.topic == OPEN_TRACES:
        if record is not None and record["tenant"] == person.tenant and _mentions(record["payload"], person):
            _add_unsealed(found, event)
    elif event.topic == DEAD_LETTERS:
        if record is not None and _is_letter_of(found, person, event, codec):
            _add_unsealed(found, event)
    elif record is None:
        if event.topic in INTAKE and _mentions(event.value, person):
            _add_unsealed(found, event)
    elif _is_sealed_for(found, record):
        _add_sealed(found, event, record)
        _add_trajectory(found, event)
    elif person.owns(record):
        _add_trajectory(found, event)
        _add_readable(found, event)


def add_by_trajectory(found: Findings, person: Person, event: Event, other_key_ids: Set[str]) -> None:
    """Add an event with content in one of the person's own trajectories that does not name the person.

    These are unsealed events that name nobody, and labels of a shared trajectory: they contain the person's steps, but
    are sealed under other people's keys alone.
    """
    record = event.record
    if record is None or record["trajectory_id"] not in found.own_trajectories or record["tenant"] != person.tenant:
        return
    if record["user"] is None and record["seal_key"] is None:
        if not is_unnamed_content(event):
            return
        _add_readable(found, event)
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


def is_unnamed_content(event: Event) -> bool:
    """Return True if a record names nobody, and a field is set that would be sealed if it did."""
    record = event.record
    if record["user"] is not None or record["seal_key"] is not None:
        return False
    if record.get("claim") is not None or any(step["tool_calls"] for step in record.get("steps", ())):
        return True
    return any(record[name] not in (None, []) for name in TOPICS[event.topic].personal)


def _add_trajectory(found: Findings, event: Event) -> None:
    found.trajectories.add(event.record["trajectory_id"])
    if not event.topic.endswith("feedback"):
        found.own_trajectories.add(event.record["trajectory_id"])
    if event.topic == LABELED_TRAJECTORIES:
        found.labels.add((event.partition, event.offset))


def _add_readable(found: Findings, event: Event) -> None:
    """Add an unsealed record, which the log loses or keeps, by its topic; the store loses its object."""
    if event.topic in INTAKE:
        _add_unsealed(found, event)
    else:
        found.remaining[event.topic] += 1
    _add_object(found, event.record)


def _add_object(found: Findings, record: Any) -> None:
    if record.get("claim") is not None:
        found.objects.add(record["claim"]["path"])


def _add_unsealed(found: Findings, event: Event) -> None:
    _add_offset(found.unsealed, event)
    if event.topic == OPEN_TRACES:
        found.open_traces.setdefault((event.topic, event.partition), []).append(event.offset)


def _add_sealed(found: Findings, event: Event, record: Any) -> None:
    found.sealed += 1
    _add_object(found, record)
    if not found.requested_key_ids.isdisjoint(key_ids(record["seal_key"])):
        _add_offset(found.unreadable, event)


def _add_offset(ranges: dict[tuple[str, int], OffsetRange], event: Event) -> None:
    ranges.setdefault((event.topic, event.partition), OffsetRange(event.offset, event.offset, 0)).add(event.offset)


def _is_letter_of(found: Findings, person: Person, event: Event, codec: Codec) -> bool:
    """Return True if the value in a dead letter names the person; search undecodable values for the name."""
    letter = event.record
    value = letter["value"] or b""
    try:
        record = codec.decode(letter["topic"], value)
    except (CodecError, KeyError):
        return _mentions(value, person)
    if _is_sealed_for(found, record):
        _add_sealed(found, event, record)
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
