"""Test statements: kinds, formats, and the start of an INSERT's data for any division of the body."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.store.errors import StoreError
from stepstream.services.store.statement import Kind, Statement, needs_more, parse


@pytest.mark.parametrize(
    ("sql", "kind", "format"),
    [
        (b"SELECT 1", Kind.SELECT, None),
        (b"  -- c\n/* d */ select 1 format JSON", Kind.SELECT, "JSON"),
        (b"SELECT 1 FORMAT Native;", Kind.SELECT, "Native"),
        (b"SELECT 1 FORMAT CSV SETTINGS max_threads = 1", Kind.SELECT, "CSV"),
        (b"SELECT 1 SETTINGS max_threads = 1 FORMAT CSV", Kind.SELECT, "CSV"),
        (b"SELECT format x FROM t", Kind.SELECT, None),
        (b"SELECT 'FORMAT JSON'", Kind.SELECT, None),
        (b"SELECT 1 -- FORMAT JSON", Kind.SELECT, None),
        (b"SELECT (SELECT format JSON) AS `FORMAT X`", Kind.SELECT, None),
        (b"WITH 1 AS x SELECT x FORMAT TSV", Kind.SELECT, "TSV"),
        (b"(SELECT 1) UNION ALL (SELECT 2) FORMAT JSON", Kind.OTHER, "JSON"),
        (b"SELECT 1 INTO OUTFILE 'x' FORMAT CSV", Kind.OTHER, "CSV"),
        (b"SHOW TABLES FORMAT Pretty", Kind.OTHER, "Pretty"),
        (b"CREATE TABLE t (x Int8) ENGINE = Memory", Kind.OTHER, None),
        (b"INSERT INTO t SELECT 1 FORMAT Native", Kind.OTHER, None),
        (b"INSERT INTO t WITH 1 AS x SELECT x", Kind.OTHER, None),
        (b"", Kind.OTHER, None),
    ],
)
def test_kind_and_format(sql: bytes, kind: Kind, format: str | None) -> None:
    statement = parse(sql)
    assert (statement.kind, statement.format, statement.text) == (kind, format, sql)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"INSERT INTO t FORMAT Native\n", b"INSERT INTO t"),
        (b'insert into db.t (a, `FORMAT`, "b") format Native\r\n', b'insert into db.t (a, `FORMAT`, "b")'),
        (b"/* c */ INSERT INTO TABLE values (a) SETTINGS x = 'FORMAT y' FORMAT Native ", None),
        (b"INSERT INTO format FORMAT Native\n", b"INSERT INTO format"),
        (b"INSERT INTO FUNCTION remote('a', b) FORMAT Native\n", b"INSERT INTO FUNCTION remote('a', b)"),
    ],
)
def test_an_inserts_data_starts_after_its_format(head: bytes, text: bytes | None) -> None:
    data = b"\x00; SELECT 'FORMAT"
    statement = parse(head + data)
    expected = head[: head.rindex(b"ormat" if b"format Native" in head else b"ORMAT") - 1].rstrip()
    assert statement == Statement(Kind.INSERT, text or expected, "Native", len(head))


@pytest.mark.parametrize("clause", [b"VALUES", b"values ", b"FORMAT Values\n", b"format VALUES "])
def test_values_are_data_of_an_insert(clause: bytes) -> None:
    head = b"INSERT INTO t (a) " + clause
    assert parse(head + b"('FORMAT x');") == Statement(Kind.INSERT, b"INSERT INTO t (a)", "Values", len(head))


def test_several_statements_are_rejected() -> None:
    with pytest.raises(StoreError, match="Multi-statements"):
        parse(b"SELECT 1; DROP TABLE t")
    assert parse(b"SELECT ';' ; -- nothing more\n ;").kind is Kind.SELECT


HEADS = st.sampled_from(
    [
        b"INSERT INTO t FORMAT Native\n",
        b"INSERT INTO t (a, b) SETTINGS x = 1 FORMAT JSONEachRow \r\n",
        b"-- comment\nINSERT INTO `a FORMAT b`.t FORMAT TSV\n",
    ]
)


@given(HEADS, st.binary(min_size=1, max_size=40).filter(lambda data: data[:1] not in b" \t\r\n"), st.data())
def test_an_insert_is_the_same_for_any_division_of_the_body(head: bytes, data: bytes, draw: st.DataObject) -> None:
    """Reading pieces until none is needed gives the same statement and data."""
    body = head + data
    cut = 0
    while cut < len(body) and needs_more(body[:cut]):
        cut += draw.draw(st.integers(1, 8))
    seen = body[:cut]
    assert parse(seen) == parse(body)
    assert seen[parse(seen).data_at :] + body[cut:] == data


@given(st.binary(max_size=80))
def test_any_bytes_parse_or_raise_a_store_error(sql: bytes) -> None:
    needs_more(sql)
    with contextlib.suppress(StoreError):
        parse(sql)
