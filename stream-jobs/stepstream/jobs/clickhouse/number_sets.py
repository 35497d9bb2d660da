"""Keep sets of numbers for statements that change rows: `number IN name`.

A mutation looks numbers up directly in a table of the engine `Set`. For a subquery, ClickHouse would plan a query and
read the numbers again for each part. A table lasts as long as its statements. One that is gone too early would block
all later mutations of the rows' table: the tables of a statement that failed, or of a process that was killed, stay for
a day, and until no mutation uses them (`drop_left_sets`).
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from clickhouse_connect.driver.client import Client

_PREFIX = "numbers_of_"
_REPLICATED = """
SELECT count() FROM system.tables
WHERE database = currentDatabase() AND name = 'steps' AND engine LIKE 'Replicated%'
"""
_LEFT = """
SELECT name FROM system.tables
WHERE database = currentDatabase() AND engine = 'Set' AND startsWith(name, {prefix:String})
    AND metadata_modification_time <= now() - {seconds:UInt32}
"""
_UNFINISHED = """
SELECT count() FROM system.mutations
WHERE database = currentDatabase() AND NOT is_done AND position(command, {name:String}) > 0
"""
LITERAL_NUMBERS = 11_000
"""Numbers in the text of one statement, which stays below ClickHouse's limit of 256 KiB."""
LEFT_S = 86_400
"""Age in seconds from which a table is one that a failure left."""


@contextmanager
def number_sets(client: Client, numbers: Sequence[int]) -> Iterator[list[str]]:
    """Yield what follows `IN` to find each of the numbers (`UInt64`) in one of the sets, until the context ends.

    One server gets a table. A replica may run a statement before it has the rows of another table: there, the numbers
    are in the statements.

    Raises:
        ClickHouseError: the store is unavailable.
    """
    if not numbers:
        yield []
    elif client.query(_REPLICATED).result_rows != [(0,)]:
        yield list(literal_sets(numbers))
    else:
        name = f"{_PREFIX}{secrets.token_hex(8)}"
        client.command(f"CREATE TABLE {name} (number UInt64) ENGINE = Set")
        client.insert(name, [(number,) for number in numbers], column_names=["number"])
        yield [name]
        client.command(f"DROP TABLE {name} SYNC")


def literal_sets(numbers: Sequence[int]) -> Iterator[str]:
    """Yield subqueries of some of the numbers each. Pure.

    The numbers are one literal: ClickHouse analyzes a mutation again for each part, and thousands of literals cost it
    more than rewriting a small part.
    """
    for first in range(0, len(numbers), LITERAL_NUMBERS):
        texts = ",".join(map(str, numbers[first : first + LITERAL_NUMBERS]))
        yield f"(SELECT arrayJoin(JSONExtract('[{texts}]', 'Array(UInt64)')))"


def drop_left_sets(client: Client, age_s: int = LEFT_S) -> None:
    """Drop the tables that are older than `age_s`, in seconds, and that no mutation uses: a failure left them.

    Raises:
        ClickHouseError: the store is unavailable.
    """
    for (name,) in client.query(_LEFT, {"prefix": _PREFIX, "seconds": age_s}).result_rows:
        if client.query(_UNFINISHED, {"name": name}).result_rows == [(0,)]:
            client.command(f"DROP TABLE IF EXISTS {name} SYNC")
