"""Tables of numbers last as long as the statements that use them."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from clickhouse_connect.driver.client import Client
from waiting import wait_until

from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.clickhouse.number_sets import drop_left_sets, number_sets


@pytest.fixture(scope="module")
def rows(own_database: Callable[[str], Settings]) -> Iterator[Client]:
    """Return a client of a database with a table of four numbers."""
    settings = own_database("sets")
    with connect(settings) as client:
        client.command(f"CREATE DATABASE {settings.clickhouse.database}")
    with closing(connect(settings, database=settings.clickhouse.database)) as client:
        client.command("CREATE TABLE numbered (number UInt64) ENGINE = MergeTree ORDER BY number")
        client.insert("numbered", [(number,) for number in (1, 2, 3, 1 << 63)], column_names=["number"])
        yield client


def tables(client: Client) -> set[str]:
    query = "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'Set'"
    return {name for (name,) in client.query(query).result_rows}


def delete(client: Client, condition: str, *, wait: bool = True) -> None:
    client.command(f"ALTER TABLE numbered DELETE WHERE {condition}", settings={"mutations_sync": 2 if wait else 0})


def test_each_of_two_sets_has_its_numbers_and_is_gone_after_its_statements(rows: Client) -> None:
    with number_sets(rows, [3, 1 << 63]) as [other]:
        with number_sets(rows, [2, 1 << 63]) as [name]:
            assert tables(rows) == {name, other}
            delete(rows, f"number IN {name}")
        assert tables(rows) == {other}
        assert rows.query(f"SELECT number FROM numbered WHERE number IN {other}").result_rows == [(3,)]
    assert tables(rows) == set()
    assert rows.query("SELECT number FROM numbered ORDER BY number").result_rows == [(1,), (3,)]


def test_no_numbers_need_no_set(rows: Client) -> None:
    with number_sets(rows, []) as sets:
        assert sets == []
        assert tables(rows) == set()


class Failed(Exception):
    """The process fails while its mutation is in progress."""


def fail_to_delete(client: Client) -> None:
    with number_sets(client, [1]) as [name]:
        delete(client, f"number IN {name} AND throwIf(number = 1)", wait=False)  # the engine tries it again and again
        raise Failed


def test_a_set_that_a_failure_left_stays_while_a_mutation_uses_it(rows: Client) -> None:
    with pytest.raises(Failed):
        fail_to_delete(rows)
    [name] = tables(rows)
    drop_left_sets(rows)
    assert tables(rows) == {name}, "it is younger than a day"
    drop_left_sets(rows, age_s=0)
    assert tables(rows) == {name}, "a mutation uses it"
    rows.command("DROP TABLE numbered SYNC")
    wait_until(lambda: rows.query("SELECT count() FROM system.mutations WHERE database = 'sets'").result_rows == [(0,)])
    drop_left_sets(rows, age_s=0)
    assert tables(rows) == set()
