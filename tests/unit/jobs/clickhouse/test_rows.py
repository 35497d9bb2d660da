"""Rows of records: every topic, and columns that agree with the migrations."""

import re

import pytest
from sample_records import SAMPLES, T0_US, learner_update, step, trajectory

from stepstream.jobs.clickhouse.migrate import migrations
from stepstream.jobs.clickhouse.rows import TABLES, TOPICS, rows
from stepstream.topics.catalogue import SUBJECT_KEYS
from stepstream.topics.catalogue import TOPICS as CATALOGUE
from stepstream.topics.events import new_governance, new_lag_figures, new_tool_call

_CHANGE = re.compile(
    r"^CREATE TABLE IF NOT EXISTS (\w+)\n\((.*?)\n\)\nENGINE"
    r"|^ALTER TABLE (\w+) ADD COLUMN IF NOT EXISTS (\w+) (?!\S+ MATERIALIZED)|^DROP TABLE IF EXISTS (\w+)"
    r"|^RENAME TABLE (\w+) TO (\w+)|^CREATE TABLE IF NOT EXISTS (\w+) AS (\w+)\n",
    re.DOTALL | re.MULTILINE,
)
_COLUMN = re.compile(r"^    (\w+) ([A-Z].*)", re.MULTILINE)
_NESTED = re.compile(r"Nested\((.*)\)( COMMENT|,|$)")
_WRITTEN_BY_VIEWS = {
    *("trajectory_times", "dirty_hours", "feedback_marks", "worker_hours"),
    *("cohorts", "cohort_times", "cohort_signals", "materialized_cohorts"),
}


def columns_in(body: str) -> set[str]:
    """Names of the columns of a table's body without the materialized ones."""
    names = set()
    for name, kind in _COLUMN.findall(body):
        if nested := _NESTED.match(kind):
            parts = re.sub(r"\(.*?\)", "", nested[1]).split(", ")
            names |= {f"{name}.{part.split()[0]}" for part in parts}
        elif name != "INDEX" and " MATERIALIZED " not in kind:
            names.add(name)
    return names


def declared() -> dict[str, set[str]]:
    """Columns of each table that the sink writes, as the migrations declare them."""
    columns: dict[str, set[str]] = {}
    for change in _CHANGE.finditer("\n".join(migration.text for migration in migrations())):
        created, body, altered, column, dropped, renamed, name, copy, like = change.groups()
        if created:
            columns[created] = columns_in(body)
        elif copy:
            columns[copy] = set(columns[like])
        elif altered:
            columns[altered].add(column)
        elif dropped:
            del columns[dropped]
        else:
            columns[name] = columns.pop(renamed)
    rollups = {name for name, found in columns.items() if "version" in found and not found & {"event_id"}}
    return {name: found for name, found in columns.items() if name not in rollups | _WRITTEN_BY_VIEWS}


def test_columns_agree_with_the_migrations() -> None:
    tables = declared()
    del tables["person_index"]  # `erase` writes it
    assert {name: set(table.columns) for name, table in TABLES.items()} == tables


def test_every_topic_that_the_store_reads_becomes_rows() -> None:
    readable = {topic.name for topic in CATALOGUE.values() if "store" in topic.readers}
    assert set(TOPICS) == readable - {SUBJECT_KEYS}  # it opens sealed records with them
    assert set(TOPICS) == set(SAMPLES)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_row_has_a_value_for_each_column(topic: str) -> None:
    for table, row in rows(topic, SAMPLES[topic]):
        assert len(row) == len(TABLES[table].columns)


@pytest.mark.parametrize("topic", [name for name in TOPICS if CATALOGUE[name].personal])
def test_an_erased_record_has_no_rows(topic: str) -> None:
    assert list(rows(topic, SAMPLES[topic] | {"seal_key": "gone"})) == []


def as_dict(topic: str, record: object) -> dict[str, object]:
    table, row = next(rows(topic, record))  # type: ignore[arg-type]
    return dict(zip(TABLES[table].columns, row, strict=True))


def test_the_row_of_a_step_has_its_versions_and_source() -> None:
    plain = as_dict("governed-steps", step())
    assert (plain["version_min"], plain["version_max"], plain["trainable"]) == (3, 4, False)
    assert (plain["occurred_at"], plain["user"], plain["error"]) == (T0_US // 1000, "", "")
    governed = new_governance(
        source_event_id="t-0", job="govern@1", redactions={"email": 2}, trainable=True, policy_version=7
    )
    record = step(event_id="g", governed=governed, policy_spans=[])
    row = as_dict("governed-steps", record)
    assert (row["source_key"], row["governed_by"], row["trainable"]) == (plain["source_key"], 7, True)
    assert (row["version_min"], row["version_max"]) == (-1, -1)
    [_, (table, contents)] = rows("governed-steps", record)
    found = dict(zip(TABLES[table].columns, contents, strict=True))
    assert table == "step_contents"
    assert (found["source_event_id"], found["redactions"], found["parent_step_index"]) == ("t-0", {"email": 2}, -1)
    identity = ("tenant", "trajectory_id", "step_index", "source_key", "governed_by", "occurred_at")
    assert [found[name] for name in identity] == [row[name] for name in identity]


def test_a_label_is_one_row_with_its_steps_calls_and_components() -> None:
    calls = [new_tool_call(call_id="1", name="get", arguments="{}", error="timeout", duration_ms=2.5)]
    record = trajectory("x", revision=3)
    record["steps"][0]["tool_calls"] = [*calls, new_tool_call(call_id="2", name="put", arguments="{}")]
    [(_, row)] = rows("labeled-trajectories", record)
    found = dict(zip(TABLES["trajectories"].columns, row, strict=True))
    assert (found["trajectory_id"], found["revision"], found["label_id"], found["steps"]) == ("x", 3, "x/3", 1)
    assert (found["step.index"], found["step.reward"]) == ([0], [0.75])
    assert (found["call.step"], found["call.tool"]) == ([0, 0], ["get", "put"])
    assert (found["call.error"], found["call.ms"]) == (["timeout", ""], [2.5, -1])
    assert (found["component.step"], found["component.name"]) == ([0, 0], ["outcome", "length"])
    assert (found["component.value"], found["component.weight"]) == ([1.0, 0.5], [1.0, -0.5])


@pytest.mark.parametrize(("opened_at_us", "expected"), [(None, T0_US), (T0_US - 7_000_000, T0_US - 7_000_000)])
def test_a_label_opens_at_its_first_start(opened_at_us: int | None, expected: int) -> None:
    row = as_dict("labeled-trajectories", trajectory(opened_at_us=opened_at_us))
    assert row["opened_at"] == expected // 1000


def test_an_update_gives_its_row_and_one_for_each_range_of_staleness() -> None:
    lags = [new_lag_figures(least=0, most=0, tokens=10), new_lag_figures(least=9, tokens=5)]
    found = list(rows("learner-updates", learner_update(update=3, lags=lags)))
    assert [table for table, _ in found] == ["learner_updates", "learner_update_lags", "learner_update_lags"]
    columns = TABLES["learner_update_lags"].columns
    lag_rows = [dict(zip(columns, row, strict=True)) for _, row in found[1:]]
    assert [(row["update"], row["least"], row["most"], row["tokens"]) for row in lag_rows] == [
        (3, 0, 0, 10),
        (3, 9, None, 5),
    ]
