"""Erase persons in ordered steps. Run again, it continues after an interruption, or finds nothing left to do."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from clickhouse_connect.driver.client import Client

from stepstream.config import Settings
from stepstream.crypto.master_key import MasterKey, is_destroyed, load_master_key
from stepstream.jobs.erasure import delete_from_log, delete_from_tables
from stepstream.jobs.erasure.find_records import GOVERNED, INTAKE, Findings, Person, Say, Search, find_records
from stepstream.topics.catalogue import CONSENTS, DEAD_LETTERS, OPEN_TRACES, SUBJECT_KEYS
from stepstream.topics.events import SubjectKey
from stepstream.topics.ids import now_us
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
    """Result of an erasure."""

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
    deleted_up_to: dict[str, int] = field(default_factory=dict)
    """Newest deleted offset, by partition as `topic[partition]`."""


@dataclass(frozen=True, slots=True)
class _Erasing:
    """One person, with everything that was found before the keys are destroyed."""

    search: Search
    subject: str
    live_keys: list[SubjectKey]
    consents: list[str]
    """Keys of the person's consents."""


def erase(
    settings: Settings, client: Client, persons: Sequence[Person], *, requested_by: str, wait_s: float, say: Say
) -> list[ErasureReport]:
    """Delete all data of some persons, or make it unreadable.

    1. Find the persons' keys, and their records and trajectories in one search of the log for all of them. Save the
       findings for another attempt.
    2. Write the decision about each to the log and destroy the keys: sealed records become unreadable.
    3. Delete the unsealed records from the log, after their readers have processed them.
    4. Delete the persons' consents, wait for the sink, and delete the table rows.
    5. Write a record of what was removed: `DATA/erasures/SUBJECT.proof.json`.

    Args:
        settings: addresses and master key.
        client: client of the store.
        persons: persons to erase.
        requested_by: name that the decisions record.
        wait_s: longest time to wait for each of the jobs `govern` and `store`, in seconds.
        say: receives lines about the progress.

    Returns:
        A report about each person.

    Raises:
        CannotErase: there is no master key, the keys cannot be read, or they belong to another master key.
        JobBehind: a job has not read far enough; run it again.
    """
    master = load_master_key(settings, create=False)
    if master is None:
        raise CannotErase(
            "there is no master key here to identify the person's records: set STEPSTREAM_SEAL_MASTER_KEY, or run this "
            "on the machine with the jobs' data folder"
        )
    keys, consents = _read_keys(settings, master)
    persons = list(dict.fromkeys(persons))
    erasing = [_prepare(settings, client, master, person, keys, consents, say) for person in persons]
    find_records(settings, [one.search for one in erasing], say)
    for one in erasing:
        _save(_findings_file(settings, one.subject), one.search.found.pack())
    for one in erasing:
        delete_from_log.write_decision(settings, one.search.person.tenant, one.subject, requested_by)
        delete_from_log.destroy_keys(settings, one.live_keys)
        say(f"subject {one.subject}: {one.search.found.sealed} records are unreadable now")
    reports = []
    for number, one in enumerate(erasing, 1):
        reports.append(_remove(settings, client, one, wait_s, say))
        _save(_findings_file(settings, one.subject, "proof.json"), _proof(reports[-1], requested_by))
        say(f"erased {number} of {len(erasing)} persons")
    return reports


def _prepare(
    settings: Settings,
    client: Client,
    master: MasterKey,
    person: Person,
    keys: Mapping[str, SubjectKey],
    consents: Mapping[str, Any],
    say: Say,
) -> _Erasing:
    """Return a person's keys, consents and trajectories, with the findings of an interrupted attempt."""
    subject = master.subject(person.tenant, person.user)
    mine = [key for key in keys.values() if key["subject"] == subject]
    my_ids = {key["key_id"] for key in mine}
    found = Findings(
        set(my_ids),
        delete_from_tables.trajectories_of(client, person),
        delete_from_tables.own_trajectories_of(client, person),
    )
    saved = _findings_file(settings, subject)
    if saved.exists():
        found.merge(Findings.unpack(saved.read_bytes()))
    owner = person.tenant, person.user
    live = [key for key in mine if not is_destroyed(key)]
    say(f"subject {subject}: {len(live)} keys")
    return _Erasing(
        Search(person, found, keys.keys() - my_ids),
        subject,
        live,
        [key for key, change in consents.items() if (change["tenant"], change["user"]) == owner],
    )


def _remove(settings: Settings, client: Client, one: _Erasing, wait_s: float, say: Say) -> ErasureReport:
    """Delete what the destruction of the keys leaves: unsealed records, consents and rows."""
    found = one.search.found
    cut = _delete_unsealed(settings, found, wait_s, say)
    delete_from_log.delete_keys(settings, CONSENTS, one.consents)
    delete_from_log.wait_until_read(
        settings, "store", delete_from_log.end_offsets(settings, (*GOVERNED, DEAD_LETTERS, CONSENTS)), wait_s
    )
    rows = _delete_rows(client, one.search.person, found, say)
    return ErasureReport(
        subject=one.subject,
        keys_destroyed=len(one.live_keys),
        records_unreadable=found.sealed,
        rows_deleted=rows,
        partitions_cut=cut,
        consents_forgotten=len(one.consents),
        left=dict(found.remaining),
        trajectories=sorted(found.trajectories),
        labels=found.labels,
        deleted_up_to={f"{topic}[{partition}]": offset for (topic, partition), offset in found.unsealed.items()},
    )


def _proof(report: ErasureReport, requested_by: str) -> bytes:
    """Return the record of an erasure. It has no name and no content of the person."""
    facts = asdict(report) | {"labels": sorted(report.labels), "requested_by": requested_by, "erased_at_us": now_us()}
    return orjson.dumps(facts, option=orjson.OPT_INDENT_2)


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
    """Replace a file: the findings for another attempt, since they cannot be found without the keys, or the proof."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)


def _delete_unsealed(settings: Settings, found: Findings, wait_s: float, say: Say) -> dict[str, list[int]]:
    """Delete partitions up to the person's newest unsealed record, after their readers have processed it.

    Returns:
        The partitions by topic.
    """
    letters = {partition: offset for partition, offset in found.unsealed.items() if partition[0] == DEAD_LETTERS}
    intake = {partition: offset for partition, offset in found.unsealed.items() if partition[0] in INTAKE}
    if intake:
        say("waiting until govern has read the unsealed records")
        delete_from_log.wait_until_read(
            settings, "govern", {partition: offset + 1 for partition, offset in intake.items()}, wait_s
        )
    _spare_unfinished_traces(settings, found)
    if letters:
        delete_from_log.wait_until_read(
            settings, "store", {partition: offset + 1 for partition, offset in letters.items()}, wait_s
        )
    delete_from_log.delete_up_to(settings, found.unsealed)
    cut: dict[str, list[int]] = {}
    for topic, partition in sorted(found.unsealed):
        cut.setdefault(topic, []).append(partition)
    for topic, partitions in cut.items():
        say(f"deleted the oldest records of {topic} in partitions {partitions}: some were unsealed")
    return cut


def _spare_unfinished_traces(settings: Settings, found: Findings) -> None:
    """Exclude open traces that still wait for their spans: other people's traces would be lost too."""
    open_traces = {partition: offset for partition, offset in found.unsealed.items() if partition[0] == OPEN_TRACES}
    committed = delete_from_log.committed_offsets(settings, OTLP_GROUP, open_traces)
    for partition, offset in open_traces.items():
        if committed[partition] <= offset:
            found.remaining[OPEN_TRACES] += 1
            found.unsealed[partition] = committed[partition] - 1
            if found.unsealed[partition] < 0:
                del found.unsealed[partition]


def _delete_rows(client: Client, person: Person, found: Findings, say: Say) -> int:
    """Delete rows until none appear any more: a writer may have read some before the keys were destroyed."""
    deleted = 0
    for _ in range(_ROUNDS):
        deleted += delete_from_tables.delete_rows(client, person, found.trajectories, found.own_trajectories)
        time.sleep(_QUIET_S)
        if not delete_from_tables.count_rows(client, person, found.own_trajectories):
            break
    say(f"deleted {deleted} rows")
    return deleted
