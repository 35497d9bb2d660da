"""Test the reuse of connections between requests without a session."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from stepstream.services.store.engine import Connection
from stepstream.services.store.errors import StoreError
from stepstream.services.store.idle_connections import Configuration, IdleConnections

WRITER = Configuration(reads_only=False, database=None, settings=())
READER = Configuration(reads_only=True, database=None, settings=())


@dataclass(eq=False)
class FakeConnection:
    configuration: Configuration
    is_open: bool = True

    def close(self) -> None:
        assert self.is_open
        self.is_open = False


@dataclass
class Opened:
    connections: list[FakeConnection] = field(default_factory=list)

    def connect(self, configuration: Configuration) -> Any:
        self.connections.append(FakeConnection(configuration))
        return self.connections[-1]

    def are_open(self) -> list[bool]:
        return [connection.is_open for connection in self.connections]


@pytest.fixture
def opened() -> Opened:
    return Opened()


def use(idle: IdleConnections, configuration: Configuration, *, is_clean: bool = True) -> Any:
    with idle.use(configuration) as lease:
        lease.is_clean = is_clean
        return lease.connection


def test_a_clean_connection_serves_the_next_request_of_its_configuration(opened: Opened) -> None:
    idle = IdleConnections(opened.connect)
    first = use(idle, WRITER)
    assert use(idle, READER) is not first
    assert use(idle, WRITER) is first
    assert [one.configuration for one in opened.connections] == [WRITER, READER]
    assert all(one.is_open for one in opened.connections)


def test_a_connection_that_may_have_changed_is_closed(opened: Opened) -> None:
    idle = IdleConnections(opened.connect)
    first = use(idle, WRITER, is_clean=False)
    assert not first.is_open
    assert use(idle, WRITER) is not first


def fail_with(idle: IdleConnections) -> None:
    with idle.use(WRITER):
        raise StoreError(1, "failed")


def test_a_failed_request_closes_its_connection(opened: Opened) -> None:
    idle = IdleConnections(opened.connect)
    with pytest.raises(StoreError):
        fail_with(idle)
    assert not opened.connections[0].is_open
    assert len(idle) == 0


def test_requests_at_the_same_time_have_connections_of_their_own(opened: Opened) -> None:
    idle = IdleConnections(opened.connect)
    with idle.use(WRITER) as one, idle.use(WRITER) as other:
        assert one.connection is not other.connection


def test_the_least_recently_used_is_closed_beyond_the_limit(opened: Opened) -> None:
    idle = IdleConnections(opened.connect, limit=2)
    other = Configuration(reads_only=False, database="other", settings=())
    connections = [use(idle, configuration) for configuration in (WRITER, READER, other)]
    assert [one.is_open for one in connections] == [False, True, True]
    assert len(idle) == 2


def test_clear_closes_idle_connections_and_those_in_use(opened: Opened) -> None:
    idle = IdleConnections(opened.connect)
    use(idle, READER)
    with idle.use(WRITER) as lease:
        lease.is_clean = True
        idle.clear()
        assert opened.are_open() == [False, True]
    assert opened.are_open() == [False, False]
    assert len(idle) == 0


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    connection = Connection(":memory:")
    yield connection
    connection.close()


def test_a_select_leaves_no_settings_in_its_connection(connection: Connection) -> None:
    stream = connection.stream(b"SELECT getSetting('max_threads') SETTINGS max_threads = 7", "TabSeparated", {})
    assert stream.next() == b"7\n"
    stream.close()
    assert connection.execute("SELECT getSetting('max_threads') = 7").body == b"0\n"


def test_a_select_leaves_no_parameters_in_its_connection(connection: Connection) -> None:
    assert connection.execute("SELECT {name:String}", parameters={"name": "x"}).body == b"x\n"
    with pytest.raises(StoreError):
        connection.execute("SELECT {name:String}")


def test_an_insert_leaves_no_settings_in_its_connection(connection: Connection) -> None:
    connection.execute("CREATE DATABASE IF NOT EXISTS idle ENGINE = Atomic")
    connection.execute("CREATE TABLE idle.t (a UInt8) ENGINE = Memory")
    insert = connection.insert(b"INSERT INTO idle.t SETTINGS max_threads = 7", "TabSeparated")
    insert.append(b"1\n")
    insert.finish()
    insert.close()
    assert connection.execute("SELECT a, getSetting('max_threads') = 7 FROM idle.t").body == b"1\t0\n"
