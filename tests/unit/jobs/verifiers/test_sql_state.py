"""The verifier `sql_state`."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_verifiers import create, value, verdict

from stepstream.jobs.verifiers.base import UnverifiableCase
from stepstream.jobs.verifiers.sql_state import normalize

SETUP = "CREATE TABLE t (id INTEGER, name TEXT, x REAL); INSERT INTO t VALUES (1, 'a', 1.5), (2, 'b', 2.0);"


@pytest.mark.parametrize(
    ("statements", "word"),
    [
        ("UPDATE t SET name = 'c' WHERE id = 2", "equal"),
        ("DELETE FROM t; INSERT INTO t VALUES (2.0, 'c', 2), (1, 'a', 1.5)", "equal"),
        ("BEGIN; UPDATE t SET name = 'c' WHERE id = 2; COMMIT", "equal"),
        ("BEGIN; UPDATE t SET name = 'c' WHERE id = 2", "different"),
        ("UPDATE t SET name = 'c'", "different"),
        ("UPDATE t SET name = 'c' WHERE id = 2; INSERT INTO t SELECT * FROM t WHERE id = 1", "different"),
        ("UPDATE t SET name = 'c' WHERE id = 2; CREATE TABLE u (a)", "different"),
        ("UPDATE t SET name = 'c' WHERE id = 2; CREATE TABLE sqlitex (a)", "different"),
        ("SELECT 1", "different"),
        ("", "different"),
        ("DROP TABLE t", "different"),
        ("UPDATE nothing SET x = 1", "failed"),
        ("this is not SQL", "failed"),
        ("SELECT '\0'", "failed"),
        ("INSERT INTO t VALUES (3, CAST(x'ff' AS TEXT), 0)", "failed"),
        ("ATTACH '{file}' AS other", "failed"),
        ("VACUUM INTO '{file}'", "failed"),
        ("PRAGMA writable_schema = ON", "failed"),
        ("SELECT load_extension('{file}')", "failed"),
        ("CREATE TABLE big AS SELECT zeroblob(1000000000) AS x", "failed"),
        ("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c", "timeout"),
        # A function is not interrupted: what one call could take for hours is refused.
        ("SELECT instr(zeroblob(2000000), CAST(zeroblob(1000000) AS BLOB) || x'01')", "failed"),
        ("SELECT hex(zeroblob(40000)) LIKE '%' || hex(zeroblob(10000)) || '1'", "failed"),
        (
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 1000) "
            "INSERT INTO t SELECT 3, hex(zeroblob(1000)), instr(zeroblob(90000), zeroblob(40000 + n) || x'01') FROM c",
            "timeout",
        ),
        (
            "CREATE TEMP TABLE x AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 5000) "
            "SELECT zeroblob(1000) FROM c",
            "failed",
        ),
        (
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 100000) "
            "INSERT INTO t SELECT n, hex(zeroblob(1000)), 0 FROM c",
            "failed",
        ),
    ],
)
def test_sql_state(statements: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "stolen.db"
    verifier = create("sql_state", seconds=0.2 if word == "timeout" else 30.0, memory_mb=4)
    gold = "UPDATE t SET name = 'c' WHERE id = 2"
    found = verdict(verifier, statements.replace("{file}", str(file)), setup=SETUP, gold=gold)
    assert found.category == word, found
    assert found.value == (word == "equal")
    assert not file.exists()


def test_a_state_may_be_given_as_rows_and_pay_a_share() -> None:
    state = {"T": [[2, "b", 2], [1, "a", 1.5]], "u": [[None]]}
    assert value(create("sql_state"), "CREATE TABLE U (a); INSERT INTO u VALUES (NULL)", setup=SETUP, state=state) == 1
    share = create("sql_state", pays="share")
    assert value(share, "CREATE TABLE u (a)", setup=SETUP, state=state) == 0.0  # t was right already
    both = {"setup": SETUP, "gold": "UPDATE t SET name = 'c'; CREATE TABLE u (a); INSERT INTO u VALUES (1)"}
    for statements, paid in (
        ("", 0.0),
        ("UPDATE t SET name = 'c'", 1 / 2),
        ("UPDATE t SET name = 'c'; CREATE TABLE more (a)", 1 / 3),
        (both["gold"], 1.0),
    ):
        assert value(share, statements, **both) == pytest.approx(paid)
    assert value(create("sql_state", ignore=("u",)), "", setup=SETUP, state=state) == 1


@pytest.mark.parametrize("fields", [{}, {"gold": "nonsense"}, {"setup": 1, "gold": ""}, {"state": {"t": 1}}])
def test_a_task_without_a_state_cannot_be_judged(fields: dict[str, Any]) -> None:
    with pytest.raises(UnverifiableCase):
        verdict(create("sql_state"), "SELECT 1", **fields)


ROWS = st.lists(st.tuples(st.integers(-5, 5), st.sampled_from(["a", "b", None]), st.floats(-2, 2)), max_size=6)


@given(ROWS, st.randoms())
def test_the_order_of_rows_does_not_count(rows: list[tuple[Any, ...]], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    insert = "".join(f"INSERT INTO t VALUES ({a}, {'NULL' if b is None else repr(b)}, {c!r});" for a, b, c in shuffled)
    known = {"setup": "CREATE TABLE t (a, b, c);", "state": {"t": [list(row) for row in rows]}}
    assert value(create("sql_state"), insert, **known) == 1
    assert value(create("sql_state"), insert + "INSERT INTO t VALUES (9, 9, 9)", **known) == 0


@pytest.mark.parametrize(
    ("left", "right"), [(1, 1.0), (True, 1), (0.1 + 0.2, 0.3), (-0.0, 0), (float("inf"), float("inf")), (b"a", b"a")]
)
def test_equal_values_are_normalized_equally(left: Any, right: Any) -> None:
    assert normalize(left) == normalize(right)
