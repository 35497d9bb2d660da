"""Test the index by person in the embedded store."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import cast

import pytest
from clickhouse_connect.driver.client import Client
from memory_log import MemoryIndex, MemoryLog
from stream_records import make_feedback, make_steps

from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.erasure.find_records import Search, find_records
from stepstream.jobs.erasure.findings import Findings, Person
from stepstream.jobs.erasure.index_table import PersonIndexTable
from stepstream.jobs.erasure.read_log import INDEXED, Log
from stepstream.jobs.erasure.selection import IndexRow, PersonIndex
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event


@pytest.fixture(scope="module")
def client(own_database: Callable[[str], Settings]) -> Iterator[Client]:
    settings = own_database("person_index")
    migrate(settings)
    with closing(connect(settings, database="person_index")) as opened:
        yield opened


def find(events: list[Event], index: PersonIndex) -> tuple[Findings, int]:
    """Return the findings about a person, and the number of records that were read for the index."""
    log = MemoryLog(events, cast(Codec, None))
    search = Search(Person("default", "ann"), Findings({"k1"}), {"k2"})
    find_records(cast(Log, log), index, lambda tenant, user: f"{tenant}/{user}", [search], lambda _: None)
    return search.found, log.indexed


def test_a_search_with_the_index_in_the_store_finds_what_one_without_it_finds(client: Client) -> None:
    events = [
        Event("feedback", 0, 0, "", make_feedback("mine", comment="unnamed")),
        Event("steps", 1, 4, "", make_steps("mine", 1, user="ann")[0]),
        Event("governed-steps", 0, 7, "", make_steps("mine", 1, user=None)[0] | {"seal_key": "k1+k2"}),
        Event("governed-steps", 0, 8, "", make_steps("other", 1, user=None)[0] | {"seal_key": "k2"}),
    ]
    without, _ = find(events, MemoryIndex())
    assert (without.sealed, len(without.unsealed)) == (1, 2)
    bases = {topic: number for number, topic in enumerate(INDEXED, 1)}
    table = PersonIndexTable(client, bases)
    assert [find(events, table), find(events, table)] == [(without, 4), (without, 0)]
    recreated = PersonIndexTable(client, bases | {"steps": 99})
    assert find(events, recreated) == (without, 1), "the topic has another id: its rows do not count"
    assert find(events, PersonIndexTable(client, {})) == (without, 4), "the broker gives no ids"


def test_rows_about_records_that_are_gone_leave_the_index(client: Client) -> None:
    table = PersonIndexTable(client, {"steps": 101, "feedback": 102})
    for topic in ("steps", "feedback"):
        table.add(IndexRow(topic, 99, 0, 10, [3, 4], [7, 8]))
        table.add(IndexRow(topic, 99, 10, 20, [13], [8]))
    assert sorted(list(match.offsets) for match in next(table.find([8]))) == [[4], [4], [13], [13]]
    table.forget(("steps", 99), 10)
    left = sorted((match.topic, match.first) for match in table.covered())
    assert left == [("feedback", 0), ("feedback", 10), ("steps", 10)]
