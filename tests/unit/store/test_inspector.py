"""Test the inspection of statements with the engine's own parser."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stepstream.services.store.engine import Connection
from stepstream.services.store.errors import StoreError
from stepstream.services.store.inspector import Inspector

SECRET = b"planted-in-a-file"


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    connection = Connection(":memory:")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def inspector(connection: Connection) -> Iterator[Inspector]:
    inspector = Inspector(Connection(":memory:"))
    yield inspector
    inspector.close()


def test_no_permitted_function_of_the_engine_reads_a_file(
    connection: Connection, inspector: Inspector, tmp_path: Path
) -> None:
    """A new version of the engine may bring a function that does: refuse it then."""
    file = tmp_path / "secret.txt"
    file.write_bytes(SECRET)
    assert SECRET in connection.execute(f"SELECT file('{file}')").body
    names = connection.execute("SELECT name FROM system.functions WHERE NOT is_aggregate").body.decode().split()
    assert len(names) > 1000
    for name in names:
        sql = f"SELECT toString(`{name}`('{file}'))"
        try:
            inspector.check(sql.encode())
            text = connection.execute(sql).body
        except StoreError:
            continue
        assert SECRET not in text, name


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SHOW TABLES",
        "DESCRIBE TABLE `a b`.t FORMAT JSON",
        "EXISTS t",
        "SHOW CREATE TABLE t",
        "EXPLAIN SELECT 1",
    ],
)
def test_statements_that_only_read(inspector: Inspector, sql: str) -> None:
    inspector.check(sql.encode(), reads_only=True)


@pytest.mark.parametrize(
    "sql", ["SELECT " + "(" * 5000 + "1" + ")" * 5000, "SELECT " + "[" * 400 + "]" * 400, "SELECT 'é\udcff'"]
)
def test_strange_statements_end_in_a_store_error_or_none(inspector: Inspector, sql: str) -> None:
    with suppress(StoreError):
        inspector.check(sql.encode("utf-8", "surrogateescape"))
