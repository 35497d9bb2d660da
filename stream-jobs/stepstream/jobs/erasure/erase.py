"""Erase persons in ordered steps. Run again, it continues after an interruption, or finds nothing left to do."""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client

from stepstream.config import Settings
from stepstream.crypto.master_key import MasterKey, is_destroyed, load_master_key
from stepstream.jobs.clickhouse import hidden_rows
from stepstream.jobs.clickhouse.migrate import missing_migrations
from stepstream.jobs.erasure import delete_from_log, delete_from_tables
from stepstream.jobs.erasure.content_objects import remove_objects
from stepstream.jobs.erasure.delete_from_tables import PersonTrajectories, Target
from stepstream.jobs.erasure.find_records import Search, find_records
from stepstream.jobs.erasure.findings import Findings, OffsetRange, Person
from stepstream.jobs.erasure.index_table import PersonIndexTable, read_bases
from stepstream.jobs.erasure.proof import build_proof, send_proof
from stepstream.jobs.erasure.read_log import GOVERNED, INDEXED, INTAKE, Log
from stepstream.jobs.erasure.request import ErasureRequest, parse_range_name
from stepstream.jobs.erasure.search_progress import Say
from stepstream.jobs.erasure.update_index import update_index
from stepstream.topics.catalogue import CONSENTS, DEAD_LETTERS, OPEN_TRACES, SUBJECT_KEYS
from stepstream.topics.events import SubjectKey
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.table import Table

OTLP_GROUP = "otlp"
"""The gateways' consumer group, which commits the open traces that it has finished."""
_TABLE_S = 30.0
_ROUNDS = 10
_QUIET_S = 1.0


class CannotErase(Exception):
    """The erasure did not start; the message gives the reason and the remedy."""


@dataclass
class ErasureReport:
    """Result of an erasure, with what interrupted attempts of the same request removed."""

    subject: str
    """Keyed digest of tenant and user: the person's name on the log."""
    keys_destroyed: int
    records_unreadable: int
    rows_deleted: int
    partitions_cut: dict[str, list[int]] = field(default_factory=dict)
    """Partitions, by topic, whose oldest records were deleted because some were the person's and unsealed."""
    consents_forgotten: int = 0
    left: dict[str, int] = field(default_factory=dict)
    """Number of readable records that remain, by topic; empty: the erasure is complete."""
    trajectories: list[str] = field(default_factory=list)
    labels: set[tuple[int, int]] = field(default_factory=set)
    objects_removed: int = 0
    """Objects with the content of the person's large records."""
    request_id: str = ""
    """Key of the proof on `erasure-proofs`."""
    rows_hidden: int = 0
    """Number of the deleted rows that no query returns, and whose bytes stay on disk until the next rewriting."""


@dataclass(frozen=True, slots=True)
class _Erasing:
    """One person, with everything that was found before the keys are destroyed."""

    search: Search
    subject: str
    live_keys: list[SubjectKey]
    consents: list[str]
    """Keys of the person's consents."""
    request: ErasureRequest
    request_file: Path


def erase(
    settings: Settings,
    client: Client,
    persons: Sequence[Person],
    *,
    requested_by: str,
    wait_s: float,
    say: Say,
    rewrite: bool = False,
) -> list[ErasureReport]:
    """Delete all data of some persons, or make it unreadable.

    1. Find the persons' keys, and their records and trajectories in one search of the log for all of them. Save the
       findings for another attempt.
    2. Write the decision about each to the log and destroy the keys: sealed records become unreadable.
    3. Delete the unsealed records from the log, after their readers have processed them.
    4. Delete the persons' consents, wait for the sink, hide the table rows from every query, and remove the objects of
       the persons' large records. With `rewrite`, rewrite the parts with hidden rows; otherwise the sink does so within
       `store.rewrite_hours`.
    5. Write the proof to the log. It names the rows that are hidden and not removed yet.

    An attempt that follows an interrupted one continues its request, and there is one proof of both.

    Args:
        settings: addresses and master key.
        client: client of the store.
        persons: persons to erase.
        requested_by: name that the decisions record.
        wait_s: longest time to wait for each of the jobs `govern` and `store`, in seconds.
        say: receives lines about the progress.
        rewrite: remove the bytes of the rows in this pass.

    Returns:
        A report about each person.

    Raises:
        CannotErase: there is no master key, the keys cannot be read, or they belong to another master key; or the
            store's migrations have not ended.
        JobBehind: a job has not read far enough; run it again.
        OSError: the store of large records does not answer; run it again.
    """
    _check_migrations(client)
    master = _load_master_key(settings)
    keys, consents = _read_keys(settings, master)
    persons = list(dict.fromkeys(persons))
    trajectories = delete_from_tables.trajectories_of(client, persons)
    erasing = [
        _prepare(settings, master, person, trajectories[person], keys, consents, requested_by, say)
        for person in persons
    ]
    index = PersonIndexTable(client, read_bases(settings, INDEXED, master.subject))
    with closing(Log(settings)) as log:
        find_records(log, index, master.subject, [one.search for one in erasing], say)
    for one in erasing:
        _save(_findings_file(settings, one.subject), one.search.found.pack())
    decisions = []
    for one in erasing:
        event_id = new_event_id()
        one.request.decisions.append(event_id)
        one.request.save(one.request_file)
        tenant = one.search.person.tenant
        decisions.append(delete_from_log.write_decision(settings, tenant, one.subject, requested_by, event_id))
        delete_from_log.destroy_keys(settings, one.live_keys)
        say(f"subject {one.subject}: {one.search.found.sealed} records are unreadable now")
    for one in erasing:
        _delete_unsealed(settings, one, wait_s, say)
        delete_from_log.delete_keys(settings, CONSENTS, one.consents)
    written = delete_from_log.end_offsets(settings, (*GOVERNED, DEAD_LETTERS, CONSENTS))
    delete_from_log.wait_until_read(settings, "store", written, wait_s)
    _delete_rows(client, erasing, say)
    if rewrite:
        hidden_rows.rewrite(client, say)
    hidden = hidden_rows.hidden_parts(client)
    reports = [_report(settings, one, hidden, say) for one in erasing]
    for number, (one, decision) in enumerate(zip(erasing, decisions, strict=True), 1):
        send_proof(settings, build_proof(settings, decision, one.request, one.search.found, hidden))
        one.request.end(
            one.request_file
        )  # after the proof: killed between, the next attempt writes the same proof again
        say(f"erased {number} of {len(erasing)} persons")
    return reports


def update_person_index(settings: Settings, client: Client, say: Say) -> None:
    """Bring the index by person to the present end of the log.

    Raises:
        CannotErase: there is no master key.
        ClickHouseError: the store is unavailable.
    """
    master = _load_master_key(settings)
    with closing(Log(settings)) as log:
        update_index(log, PersonIndexTable(client, read_bases(settings, INDEXED, master.subject)), master.subject, say)


def _check_migrations(client: Client) -> None:
    """Raise `CannotErase` if a migration has not ended: rows that it moves later would come back after the proof."""
    if missing := missing_migrations(client):
        raise CannotErase(
            f"{len(missing)} migrations of the store have not ended ({missing[0]} is the first), and may still move "
            "rows: run `stepstream store migrate` to its end, then this again"
        )


def _load_master_key(settings: Settings) -> MasterKey:
    master = load_master_key(settings, create=False)
    if master is None:
        raise CannotErase(
            "there is no master key here to identify the person's records: set STEPSTREAM_SEAL_MASTER_KEY, or run this "
            "on the machine with the jobs' data folder"
        )
    return master


def _prepare(
    settings: Settings,
    master: MasterKey,
    person: Person,
    trajectories: PersonTrajectories,
    keys: Mapping[str, SubjectKey],
    consents: Mapping[str, Any],
    requested_by: str,
    say: Say,
) -> _Erasing:
    """Return a person's keys, consents and trajectories, with the findings of earlier attempts and the open request."""
    subject = master.subject(person.tenant, person.user)
    mine = [key for key in keys.values() if key["subject"] == subject]
    my_ids = {key["key_id"] for key in mine}
    found = Findings(set(my_ids), set(trajectories.joined), set(trajectories.own))
    saved = _findings_file(settings, subject)
    if saved.exists():
        found.merge(Findings.unpack(saved.read_bytes()))
    owner = person.tenant, person.user
    live = [key for key in mine if not is_destroyed(key)]
    request_file = _findings_file(settings, subject, "request.json")
    request = ErasureRequest.load(request_file)
    if request is not None:
        say(f"subject {subject}: continuing the request of {request.requested_by}")
    request = request or ErasureRequest(requested_by, now_us())
    request.key_ids = sorted({*request.key_ids, *(key["key_id"] for key in live)})
    found.requested_key_ids = set(request.key_ids)
    my_consents = [key for key, change in consents.items() if (change["tenant"], change["user"]) == owner]
    request.consents = max(request.consents, len(my_consents))
    say(f"subject {subject}: {len(live)} keys")
    return _Erasing(Search(person, found, keys.keys() - my_ids), subject, live, my_consents, request, request_file)


def _report(settings: Settings, one: _Erasing, hidden: Collection[str], say: Say) -> ErasureReport:
    """Remove the objects of the person's large records; return what was removed in all, and hidden in some tables."""
    found = one.search.found
    remove_objects(settings, sorted(found.objects))
    say(f"removed {len(found.objects)} objects of large records")
    cut: dict[str, list[int]] = {}
    for topic, partition in sorted(map(parse_range_name, one.request.deleted)):
        cut.setdefault(topic, []).append(partition)
    return ErasureReport(
        subject=one.subject,
        keys_destroyed=len(one.request.key_ids),
        records_unreadable=found.sealed,
        rows_deleted=sum(one.request.rows.values()),
        partitions_cut=cut,
        consents_forgotten=one.request.consents,
        left=dict(found.remaining),
        trajectories=sorted(found.trajectories),
        labels=found.labels,
        objects_removed=len(found.objects),
        request_id=one.request.request_id,
        rows_hidden=one.request.rows_of(hidden),
    )


def _findings_file(settings: Settings, subject: str, kind: str = "json") -> Path:
    return settings.paths.data / "erasures" / f"{subject}.{kind}"


def _read_keys(settings: Settings, master: MasterKey) -> tuple[dict[str, SubjectKey], dict[str, Any]]:
    """Return all keys and consents."""
    with Table(settings, SUBJECT_KEYS) as keys, Table(settings, CONSENTS) as consents:
        if not (keys.wait_current(_TABLE_S) and consents.wait_current(_TABLE_S)):
            raise CannotErase(
                f"cannot read {SUBJECT_KEYS} and {CONSENTS} within {_TABLE_S:g} s: are Kafka and the registry up?"
            )
        rows: dict[str, SubjectKey] = keys.items()
        changes = consents.items()
    if foreign := next((key for key in rows.values() if not (is_destroyed(key) or master.opens(key))), None):
        raise CannotErase(
            f"key {foreign['key_id']} belongs to another master key: set STEPSTREAM_SEAL_MASTER_KEY to the value of "
            "the jobs"
        )
    return rows, changes


def _save(path: Path, content: bytes) -> None:
    """Save the findings for another attempt, since they cannot be found without the keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)


def _delete_unsealed(settings: Settings, one: _Erasing, wait_s: float, say: Say) -> None:
    """Delete partitions up to the person's newest unsealed record, after their readers have processed it."""
    unsealed, request = one.search.found.unsealed, one.request
    intake = {place: found.last + 1 for place, found in unsealed.items() if place[0] in INTAKE}
    letters = {place: found.last + 1 for place, found in unsealed.items() if place[0] == DEAD_LETTERS}
    if intake:
        say("waiting until govern has read the unsealed records")
        delete_from_log.wait_until_read(settings, "govern", intake, wait_s)
    _spare_unfinished_traces(settings, one.search.found)
    if letters:
        delete_from_log.wait_until_read(settings, "store", letters, wait_s)
    places = {*unsealed, *map(parse_range_name, request.deleted)}
    request.plan_ranges(unsealed, delete_from_log.first_offsets(settings, places))
    request.save(one.request_file)
    delete_from_log.delete_up_to(settings, {place: found.last for place, found in unsealed.items()})
    for (topic, partition), found in sorted(unsealed.items()):
        say(f"deleted {topic}[{partition}] up to offset {found.last}: {found.records} records were unsealed")


def _spare_unfinished_traces(settings: Settings, found: Findings) -> None:
    """Exclude open traces that still wait for their spans: other people's traces would be lost too."""
    committed = delete_from_log.committed_offsets(settings, OTLP_GROUP, found.open_traces)
    for place, offsets in found.open_traces.items():
        finished = [offset for offset in offsets if offset < committed[place]]
        if unfinished := len(offsets) - len(finished):
            found.remaining[OPEN_TRACES] += unfinished
        del found.unsealed[place]
        if finished:
            found.unsealed[place] = OffsetRange(finished[0], finished[-1], len(finished))


class _SavedCounts:
    """Counts of deleted rows in a request, saved at each change."""

    def __init__(self, one: _Erasing) -> None:
        self._request, self._file = one.request, one.request_file

    def plan_rows(self, step: str, table: str, present: int) -> None:
        """As `RowCounts.plan_rows`."""
        self._request.plan_rows(step, table, present)
        if present:
            self._request.save(self._file)

    def rows_removed(self, step: str, table: str) -> None:
        """As `RowCounts.rows_removed`."""
        self._request.rows_removed(step, table)


def _delete_rows(client: Client, erasing: Sequence[_Erasing], say: Say) -> None:
    """Hide the persons' rows until none appear any more: a writer may have read some before the keys were destroyed."""
    targets = []
    for one in erasing:
        found = one.search.found
        trajectories = PersonTrajectories(found.trajectories, found.own_trajectories)
        targets.append(Target(one.search.person, trajectories, _SavedCounts(one)))
    deleted = 0
    for _ in range(_ROUNDS):
        deleted += delete_from_tables.delete_rows(client, targets)
        time.sleep(_QUIET_S)
        if not delete_from_tables.count_rows(client, targets):
            break
    say(f"hid {deleted} rows: no query returns them")
