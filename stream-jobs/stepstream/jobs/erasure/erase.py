"""Erases a person, step by step; run again, it goes on where it was cut off, or finds nothing left to do."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from clickhouse_connect.driver.client import Client

from stepstream.config import Settings
from stepstream.crypto.key_ring import KEYS
from stepstream.crypto.master_key import Master, WrongMasterKey, master_of
from stepstream.jobs.erasure import delete_from_log, delete_from_tables
from stepstream.jobs.erasure.find_records import DEAD_LETTERS, GOVERNED, INTAKE, OPEN_TRACES, Found, Person, Say, find
from stepstream.topics.events import SubjectKey
from stepstream.topics.table import Table

OTLP_GROUP = "otlp"
"""The gateways' consumer group, which commits the open traces that it has told."""
_TABLE_S = 30.0
_ROUNDS = 10
_QUIET_S = 1.0


class CannotErase(Exception):
    """Nothing was done; the message says why and what to do."""


@dataclass
class Erased:
    """What was done."""

    subject: str
    """Keyed digest of tenant and user: the person's name in the log."""
    keys_destroyed: int
    records_unreadable: int
    rows_deleted: int
    partitions_cut: dict[str, list[int]] = field(default_factory=dict)
    """Partitions, by topic, whose oldest records were deleted since some were the person's in the clear."""
    consents_forgotten: int = 0
    left: dict[str, int] = field(default_factory=dict)
    """Records that are not erased, by topic; empty where the erasure is complete."""
    trajectories: list[str] = field(default_factory=list)
    labels: set[tuple[int, int]] = field(default_factory=set)


def erase(settings: Settings, client: Client, person: Person, *, requested_by: str, wait_s: float, say: Say) -> Erased:
    """Makes everything of a person unreadable or gone.

    Args:
        settings: where the log and the master key are.
        client: of the analytics store.
        person: whom.
        requested_by: goes into the decision.
        wait_s: seconds to wait for each of the jobs `govern` and `store`.
        say: told what is done.

    Raises:
        CannotErase: the keys cannot be read, or belong to another master key than the one here.
        NotInTime: a job did not come far enough; run it again.
    """
    master = master_of(settings, make=False)
    if master is None:
        raise CannotErase(
            "there is no master key here, so nobody can tell whose records are whose: set STEPSTREAM_SEAL_MASTER_KEY, "
            "or run this where the data folder of the jobs is"
        )
    subject = master.subject(person.tenant, person.user)
    key_ids, others, consents = _theirs(settings, master, subject, person)
    say(f"subject {subject}: {len(key_ids)} keys")
    journal = settings.paths.data / "erasures" / f"{subject}.json"
    earlier = Found.unpack(journal.read_bytes()) if journal.exists() else Found()
    found = Found(
        set(key_ids), delete_from_tables.trajectories_of(client, person), delete_from_tables.own_of(client, person)
    )
    found.merge(earlier)
    find(settings, person, found, others, say)
    _remember(journal, found)
    delete_from_log.decide(settings, person.tenant, subject, requested_by)
    delete_from_log.destroy(settings, key_ids)
    say(f"destroyed {len(key_ids)} keys: {found.sealed} records cannot be read any more")
    cut = _cut_intake(settings, found, wait_s, say)
    delete_from_log.forget(settings, "consents", consents)
    delete_from_log.wait_until_read(
        settings, "store", delete_from_log.ends(settings, (*GOVERNED, DEAD_LETTERS, "consents")), wait_s
    )
    rows = _delete_rows(client, person, found, say)
    return Erased(
        subject=subject,
        keys_destroyed=len(key_ids),
        records_unreadable=found.sealed,
        rows_deleted=rows,
        partitions_cut=cut,
        consents_forgotten=len(consents),
        left=dict(found.left),
        trajectories=sorted(found.trajectories),
        labels=found.labels,
    )


def _theirs(settings: Settings, master: Master, subject: str, person: Person) -> tuple[list[str], set[str], list[str]]:
    """Ids of their keys, those of other people's, and keys of the consents that name them."""
    with Table(settings, KEYS) as keys, Table(settings, "consents") as consents:
        if not (keys.wait_current(_TABLE_S) and consents.wait_current(_TABLE_S)):
            raise CannotErase(f"{KEYS} and consents could not be read within {_TABLE_S:g} s: is the registry up?")
        rows: dict[str, SubjectKey] = keys.items()
        said = consents.items()
    for key in rows.values():
        try:
            master.cipher(key)
        except WrongMasterKey as error:
            raise CannotErase(str(error)) from None
        break
    named = [key for key, change in said.items() if (change["tenant"], change["user"]) == (person.tenant, person.user)]
    theirs = [key_id for key_id, key in rows.items() if key["subject"] == subject]
    return theirs, rows.keys() - set(theirs), named


def _remember(journal: Path, found: Found) -> None:
    """Keeps what was found for the next attempt: once the keys are gone, it cannot be found again."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    made = journal.with_suffix(".new")
    made.write_bytes(found.pack())
    made.replace(journal)


def _cut_intake(settings: Settings, found: Found, wait_s: float, say: Say) -> dict[str, list[int]]:
    """Deletes the beginnings of partitions in which something of theirs is in the clear, once it has been used."""
    letters = {place: offset for place, offset in found.clear.items() if place[0] == DEAD_LETTERS}
    intake = {place: offset for place, offset in found.clear.items() if place[0] in INTAKE}
    if intake:
        say("waiting until govern has read what is in the clear")
        delete_from_log.wait_until_read(
            settings, "govern", {place: offset + 1 for place, offset in intake.items()}, wait_s
        )
    _keep_untold(settings, found)
    if letters:
        delete_from_log.wait_until_read(
            settings, "store", {place: offset + 1 for place, offset in letters.items()}, wait_s
        )
    delete_from_log.delete_up_to(settings, found.clear)
    cut: dict[str, list[int]] = {}
    for topic, partition in sorted(found.clear):
        cut.setdefault(topic, []).append(partition)
    for topic, partitions in cut.items():
        say(f"deleted the oldest records of {topic} in partitions {partitions}: some were in the clear")
    return cut


def _keep_untold(settings: Settings, found: Found) -> None:
    """Takes from what is to be cut the open traces that wait for their rest: they would be lost for everybody."""
    open_traces = {place: offset for place, offset in found.clear.items() if place[0] == OPEN_TRACES}
    told = delete_from_log.read_by(settings, OTLP_GROUP, open_traces)
    for place, offset in open_traces.items():
        if told[place] <= offset:
            found.left[OPEN_TRACES] += 1
            found.clear[place] = told[place] - 1
            if found.clear[place] < 0:
                del found.clear[place]


def _delete_rows(client: Client, person: Person, found: Found, say: Say) -> int:
    """Deletes rows until none come any more: a writer may still have held some when its key was destroyed."""
    deleted = 0
    for _ in range(_ROUNDS):
        deleted += delete_from_tables.delete_rows(client, person, found.trajectories, found.own)
        time.sleep(_QUIET_S)
        if not delete_from_tables.rows_left(client, person, found.own):
            break
    say(f"deleted {deleted} rows")
    return deleted
