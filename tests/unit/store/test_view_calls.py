"""Test that calls of views become their definitions, with the engine's own parser."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepstream.services.store.engine import Connection, literal
from stepstream.services.store.errors import StoreError
from stepstream.services.store.view_calls import TEXT_SETTINGS, called_views, with_definitions

DEFINITIONS = {
    "v": "-- a view's\nSELECT {since:DateTime('UTC')} AS a, {until:DateTime('UTC')} AS b, ')' AS c",
    "w": "SELECT toDate({until:DateTime('UTC')}) AS a, n FROM t",
}
GIVEN = "since = '2026-11-01 00:00:00', until = toDateTime('2026-11-02 00:00:00', 'UTC') + INTERVAL 1 DAY"


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    connection = Connection(":memory:")
    connection.execute("CREATE TABLE t ENGINE = Memory AS SELECT 7 AS n")
    for name, text in DEFINITIONS.items():
        connection.execute(f"CREATE VIEW {name} AS {text}")
    yield connection
    connection.close()


def replaced(connection: Connection, sql: str) -> bytes | None:
    """Return the statement without its calls; None: it keeps them."""
    tree = json.loads(connection.execute(f"SELECT parseQueryToJSON({literal(sql)})", "TabSeparatedRaw").body)
    aliases = called_views(tree, frozenset(DEFINITIONS))
    return with_definitions(sql.encode(), aliases, DEFINITIONS) if aliases else None


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT * FROM v({GIVEN})",
        f"SELECT v.a FROM v ( {GIVEN} ) WHERE c = ')' ORDER BY a LIMIT 1 SETTINGS max_threads = 1",
        f"select x.a, 'v(' from v({GIVEN}) x",
        f"SELECT a AS b, b AS a FROM /* v( */ v({GIVEN}) AS x FORMAT CSV",
        "SELECT a = {since:DateTime('UTC')}, b = {until:DateTime('UTC')} "
        "FROM v(until = {since:DateTime('UTC')}, since = {until:DateTime('UTC')})",
        f"SELECT count() FROM (SELECT * FROM v({GIVEN})) AS x INNER JOIN w({GIVEN}) USING (a)",
        f"SELECT a FROM v({GIVEN}) UNION ALL SELECT toDateTime(a, 'UTC') FROM w({GIVEN})",
        "SELECT a, b FROM v(since = 1790000000, until = ('2026-11-01 00:00:00'))",
        f"SELECT * FROM w({GIVEN}) AS t",
        f"SELECT t.n AS t, 8 AS n FROM w({GIVEN}) AS t WHERE a < '2027-01-01'",
        f"SELECT * FROM (SELECT 8 AS n) AS t CROSS JOIN w({GIVEN})",
        f"SELECT n FROM (SELECT 8 AS n) AS t WHERE n > (SELECT max(n) FROM w({GIVEN}))",
        f"SELECT arrayMap(v -> (v), [1]), a FROM v({GIVEN})",
    ],
)
def test_a_statement_returns_the_same_without_its_calls(connection: Connection, sql: str) -> None:
    text = replaced(connection, sql)
    assert text is not None
    assert b"until =" not in text
    parameters = {"since": "2026-11-01 00:00:00", "until": "2026-11-03 00:00:00"}
    assert connection.execute(text, "CSV", parameters).body == connection.execute(sql, "CSV", parameters).body


@pytest.mark.parametrize(
    "sql",
    [
        f"WITH 1 AS x SELECT x, a FROM v({GIVEN})",
        f"SELECT a FROM v({GIVEN}) AS x WHERE a IN (WITH t AS (SELECT 1) SELECT * FROM t)",
        f"SELECT a FROM v({GIVEN}) AS x, v({GIVEN}) AS y",
        f"SELECT a FROM v({GIVEN}) SETTINGS use_query_cache = 1, query_cache_ttl = 600",
        f"SELECT a FROM v({GIVEN}) SETTINGS use_query_cache = 1 UNION ALL SELECT toDateTime(0, 'UTC')",
        *(f"SELECT a FROM (SELECT a FROM v({GIVEN}) SETTINGS {name} = 1)" for name in sorted(TEXT_SETTINGS)),
        "SELECT a FROM v(since = (SELECT now()), until = '2026-11-01 00:00:00')",
        "SELECT a FROM v(since = x, until = '2026-11-01 00:00:00')",
        "SELECT a FROM v(since = '2026-11-01 00:00:00')",
        "SELECT a FROM v(since = '', since = '')",
        "SELECT a FROM v('2026-11-01 00:00:00', '2026-11-02 00:00:00')",
        f"SELECT a FROM `v`({GIVEN})",
        f"EXPLAIN SELECT a FROM v({GIVEN})",
        f"INSERT INTO t SELECT a FROM v({GIVEN})",
        f"SELECT a, $$'$$ FROM v({GIVEN})",
        "SELECT a FROM v(since = $$x', until = file('y')) AS z --$$, until = '2026-11-01 00:00:00')",
        f"SELECT a, '\\'' FROM v({GIVEN})",
        f"SELECT a, \u2018'\u2019 FROM v({GIVEN})",
        f"SELECT a # v(\nFROM v({GIVEN})",
        "SELECT a FROM v",
        "SELECT 1",
    ],
)
def test_a_statement_whose_text_could_mean_something_else_keeps_its_calls(connection: Connection, sql: str) -> None:
    assert replaced(connection, sql) is None


PIECES = (
    *(
        "'",
        '"',
        "`",
        "''",
        "/*",
        "*/",
        "--",
        "\n",
        " ",
        ",",
        "(",
        ")",
        "[",
        "]",
        "$$",
        "#",
        "\\",
        ";",
        "=",
        "a",
        "v",
        "v(",
    ),
    *(
        "since",
        "until",
        f"v({GIVEN})",
        GIVEN,
        " FROM ",
        "SELECT ",
        " AS x",
        "file('y')",
        "1",
        "{since:DateTime('UTC')}",
    ),
)


@settings(max_examples=300, deadline=None)
@example(["/*", "v(", "*/"], ["--", "v("])
@given(st.lists(st.sampled_from(PIECES), max_size=6), st.lists(st.sampled_from(PIECES), max_size=6))
def test_whatever_is_around_a_call_means_the_same(connection: Connection, before: list[str], after: list[str]) -> None:
    sql = f"SELECT {''.join(before)} a FROM v({GIVEN}) {''.join(after)}"
    try:
        text = replaced(connection, sql)
    except StoreError:  # the engine cannot parse it
        return
    if text is not None:
        parameters = {"since": "2026-11-01 00:00:00", "until": "2026-11-03 00:00:00"}
        assert outcome(connection, text.decode(), parameters) == outcome(connection, sql, parameters)


def outcome(connection: Connection, sql: str, parameters: dict[str, str]) -> bytes | int:
    try:
        return connection.execute(sql, "TSV", parameters).body
    except StoreError as error:
        return error.code
