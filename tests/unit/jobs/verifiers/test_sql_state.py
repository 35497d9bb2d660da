"""`exact`, `regex`, `json_schema` and `sql_state`, alone."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator

from stepstream.config import Settings
from stepstream.jobs.verifiers import registry
from stepstream.jobs.verifiers.base import Case, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.exact import number
from stepstream.jobs.verifiers.options import InvalidOptions, VerifierContext
from stepstream.jobs.verifiers.sql_state import normalize


def made(name: str, folder: Path = Path(), **options: Any) -> Any:
    return registry.make(name, options, VerifierContext(Settings(), folder))


def verdict(verifier: Any, observed: str, **expected: Any) -> Verdict:
    [found] = verifier.verify(Case("t", "task", observed, expected))
    assert isinstance(found, Verdict)
    return found


def value(verifier: Any, observed: str, **expected: Any) -> float:
    return verdict(verifier, observed, **expected).value


# exact


@pytest.mark.parametrize(
    ("observed", "expected", "options", "right"),
    [
        ("4", "4", {}, 1),
        (" a  b\n", "a b", {}, 1),
        ("a  b", "a b", {"spaces": True}, 0),
        ("Paris", "paris", {}, 0),
        ("Paris", "paris", {"case": False}, 1),
        ("caf\u00e9", "cafe\u0301", {}, 1),
        ("1,000.0", 1000, {"numbers": True}, 1),
        ("1,000.0", 1000, {}, 0),
        ("1e3", "1000", {"numbers": True}, 1),
        ("0.3", 0.30000000000000004, {"numbers": True}, 1),
        ("3.2", 3, {"numbers": True, "tolerance": 0.1}, 1),
        ("10,00", 1000, {"numbers": True}, 0),
        ("four", 4, {"numbers": True}, 0),
        ("b", ["a", "b"], {}, 1),
        ("c", ["a", "b"], {}, 0),
    ],
)
def test_exact(observed: str, expected: Any, options: dict[str, Any], right: int) -> None:
    assert value(made("exact", **options), observed, expected=expected) == right


@pytest.mark.parametrize("expected", [None, [], {}, True, [None], [["a"]]])
def test_exact_needs_something_to_compare_with(expected: Any) -> None:
    with pytest.raises(UnverifiableCase):
        verdict(made("exact"), "x", expected=expected)


@given(st.text())
def test_what_is_expected_is_right(text: str) -> None:
    ways: list[dict[str, Any]] = [{}, {"numbers": True}, {"case": False}, {"spaces": True}]
    for options in ways:
        assert value(made("exact", **options), text, expected=text) == 1


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_as_it_was_written(given_number: float) -> None:
    assert number(repr(given_number)) == given_number
    assert number(f"{given_number:,}") == given_number


# regex


def test_regex() -> None:
    assert value(made("regex", pattern="^a+$"), "aaa") == 1
    assert value(made("regex", pattern="a+"), "baab") == 1
    assert value(made("regex", pattern="a+", whole=True), "baab") == 0
    assert value(made("regex", pattern="sorry", wanted=False), "sorry, no") == 0
    assert value(made("regex"), "order 17", pattern="order [0-9]+") == 1


@pytest.mark.parametrize("pattern", [None, "(", 3])
def test_a_task_without_a_pattern_cannot_be_judged(pattern: Any) -> None:
    with pytest.raises(UnverifiableCase):
        verdict(made("regex"), "x", pattern=pattern)


def test_a_pattern_takes_linear_time() -> None:
    assert value(made("regex", pattern="^(a+)+$"), "a" * 50_000 + "b") == 0


@given(st.text(), st.text(alphabet="ab.*+?[](){}|^$ \\", min_size=1), st.text())
def test_what_is_quoted_is_found_where_it_stands(before: str, quoted: str, after: str) -> None:
    pattern = re2.escape(quoted)
    assert value(made("regex", pattern=pattern), before + quoted + after) == 1
    assert value(made("regex", pattern=pattern, wanted=False), before + quoted + after) == 0


# json_schema

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=10,
)


@given(DOCUMENTS)
def test_a_document_fits_itself_and_not_its_contrary(document: Any) -> None:
    text = orjson.dumps(document).decode()
    assert value(made("json_schema"), text, schema={"const": document}) == 1
    assert value(made("json_schema"), text, schema={"not": {"const": document}}) == 0


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_json_schema(tmp_path: Path) -> None:
    (tmp_path / "trip.json").write_bytes(orjson.dumps(SCHEMA))
    fixed, own = made("json_schema", tmp_path, file="trip.json"), made("json_schema", pays="share")
    assert value(fixed, '{"city": "Bonn", "days": 2}') == 1
    assert verdict(fixed, '{"days": 0}').comment == "2 faults, against properties/days/minimum, required"
    assert verdict(fixed, "city: Bonn").category == "not_json"
    assert value(own, '{"days": 0}', schema=SCHEMA) == pytest.approx(1 / 3)
    assert value(own, '{"city": "Bonn"}', schema=SCHEMA) == 1


def test_formats_count_where_they_are_asked_for() -> None:
    schema = {"type": "string", "format": "date"}
    assert value(made("json_schema"), '"now"', schema=schema) == 1
    assert value(made("json_schema", formats=True), '"now"', schema=schema) == 0


def test_a_document_cannot_make_a_schema_take_for_ever() -> None:
    hard = orjson.dumps({"a" * 40 + "!": "a" * 5_000 + "!"}).decode()
    schema = {"patternProperties": {"^(a+)+!$": {"pattern": "^(a+)+$"}}}
    assert verdict(made("json_schema"), hard, schema=schema).category == "misfit"
    names = {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}
    assert verdict(made("json_schema"), hard, schema=names).category == "misfit"
    many = "[{}, [true], " + ", ".join(map(str, range(30_000))) + ", 0.0]"
    assert verdict(made("json_schema"), many, schema={"uniqueItems": True}).category == "misfit"
    nested = {"$ref": "#/$defs/list", "$defs": {"list": {"items": {"$ref": "#/$defs/list"}}}}
    assert verdict(made("json_schema"), "[" * 900 + "]" * 900, schema=nested).category == "too_deep"
    assert verdict(made("json_schema"), "[" * 9_000 + "]" * 9_000, schema=nested).category == "not_json"


@pytest.mark.parametrize(
    ("schema", "document", "fits"),
    [
        ({"uniqueItems": True}, [1, True, "1", [1], [True], {"a": 1}, {"a": True}, None, [], {}], True),
        ({"uniqueItems": True}, [{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ({"uniqueItems": False}, [1, 1], True),
        (
            {"additionalProperties": False, "properties": {"a": {}}, "patternProperties": {"^b": {}}},
            {"a": 1, "bc": 1},
            True,
        ),
        ({"additionalProperties": False, "properties": {"a": {}}, "patternProperties": {"^b": {}}}, {"cb": 1}, False),
        ({"additionalProperties": {"type": "string"}, "properties": {"a": {}}}, {"a": 1, "b": "c"}, True),
        ({"additionalProperties": {"type": "string"}, "properties": {"a": {}}}, {"a": 1, "b": 2}, False),
        ({"additionalProperties": False}, [1], True),
    ],
)
def test_keywords_of_ours_say_what_the_standard_says(schema: Any, document: Any, fits: bool) -> None:
    assert value(made("json_schema"), orjson.dumps(document).decode(), schema=schema) == fits
    assert Draft202012Validator(schema).is_valid(document) == fits


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"type": "thing"},
        {"$ref": "http://127.0.0.1:9/x.json"},
        {"patternProperties": {"(?=a)": {}}},
        {"allOf": [{"patternProperties": {"a": {}}}], "unevaluatedProperties": False},
    ],
)
def test_a_task_without_a_sound_schema_cannot_be_judged(schema: Any) -> None:
    with pytest.raises(UnverifiableCase):
        verdict(made("json_schema"), '{"a": 1}', schema=schema)


# sql_state

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
    verifier = made("sql_state", seconds=0.2 if word == "timeout" else 30.0, memory_mb=4)
    gold = "UPDATE t SET name = 'c' WHERE id = 2"
    found = verdict(verifier, statements.replace("{file}", str(file)), setup=SETUP, gold=gold)
    assert found.category == word, found
    assert found.value == (word == "equal")
    assert not file.exists()


def test_a_state_may_be_given_as_rows_and_a_share_be_paid() -> None:
    state = {"T": [[2, "b", 2], [1, "a", 1.5]], "u": [[None]]}
    assert value(made("sql_state"), "CREATE TABLE U (a); INSERT INTO u VALUES (NULL)", setup=SETUP, state=state) == 1
    share = made("sql_state", pays="share")
    assert value(share, "CREATE TABLE u (a)", setup=SETUP, state=state) == 0.0  # t was right already
    both = {"setup": SETUP, "gold": "UPDATE t SET name = 'c'; CREATE TABLE u (a); INSERT INTO u VALUES (1)"}
    for statements, paid in (
        ("", 0.0),
        ("UPDATE t SET name = 'c'", 1 / 2),
        ("UPDATE t SET name = 'c'; CREATE TABLE more (a)", 1 / 3),
        (both["gold"], 1.0),
    ):
        assert value(share, statements, **both) == pytest.approx(paid)
    assert value(made("sql_state", ignore=("u",)), "", setup=SETUP, state=state) == 1


@pytest.mark.parametrize("fields", [{}, {"gold": "nonsense"}, {"setup": 1, "gold": ""}, {"state": {"t": 1}}])
def test_a_task_without_a_state_cannot_be_judged(fields: dict[str, Any]) -> None:
    with pytest.raises(UnverifiableCase):
        verdict(made("sql_state"), "SELECT 1", **fields)


ROWS = st.lists(st.tuples(st.integers(-5, 5), st.sampled_from(["a", "b", None]), st.floats(-2, 2)), max_size=6)


@given(ROWS, st.randoms())
def test_the_order_of_rows_does_not_count(rows: list[tuple[Any, ...]], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    insert = "".join(f"INSERT INTO t VALUES ({a}, {'NULL' if b is None else repr(b)}, {c!r});" for a, b, c in shuffled)
    known = {"setup": "CREATE TABLE t (a, b, c);", "state": {"t": [list(row) for row in rows]}}
    assert value(made("sql_state"), insert, **known) == 1
    assert value(made("sql_state"), insert + "INSERT INTO t VALUES (9, 9, 9)", **known) == 0


@pytest.mark.parametrize(
    ("left", "right"), [(1, 1.0), (True, 1), (0.1 + 0.2, 0.3), (-0.0, 0), (float("inf"), float("inf")), (b"a", b"a")]
)
def test_values_that_are_the_same(left: Any, right: Any) -> None:
    assert normalize(left) == normalize(right)


# all


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", {}, "no verifier 'nothing'; there are exact, json_schema"),
        ("exact", {"case": "maybe"}, "case"),
        ("exact", {"cases": True}, "cases"),
        ("regex", {"pattern": "("}, "pattern: missing"),
        ("json_schema", {"file": "gone.json"}, "gone.json cannot be read"),
        ("judge", {}, "set judge.url and judge.model"),
        ("process_reward", {}, "model"),
        ("unit_tests", {"file": "../solution.py"}, "file"),
    ],
)
def test_options_that_make_no_sense_are_told(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptions, match=message):
        made(name, **options)


def test_an_installed_package_can_bring_a_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plug.py").write_text(
        "class Plug:\n"
        "    source, reads_trajectory = 'verifier', False\n"
        "    def __init__(self, options): self.options = options\n"
        "    def verify(self, case): return [self.options['value']]\n"
        "def make(options, surroundings): return Plug(options)\n"
    )
    info = tmp_path / "plug-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stepstream.verifiers]\nplugged = plug:make\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "plugged" in registry.names()
    assert made("plugged", value=3).verify(Case("t", "", "")) == [3]
