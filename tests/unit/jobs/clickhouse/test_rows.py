"""Rows of records: every topic, and columns that agree with the migrations."""

import re

import pytest
from sample_records import SAMPLES, learner_update, step, trajectory

from stepstream.jobs.clickhouse.migrate import migrations
from stepstream.jobs.clickhouse.rows import TABLES, TOPICS, rows
from stepstream.topics.catalogue import SUBJECT_KEYS
from stepstream.topics.catalogue import TOPICS as CATALOGUE
from stepstream.topics.events import new_governance, new_lag_figures

_CREATE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)\n\((.*?)\n\)\nENGINE", re.DOTALL)
_ADDED = re.compile(r"^ALTER TABLE (\w+) ADD COLUMN IF NOT EXISTS (\w+) (?!\w+ MATERIALIZED)", re.MULTILINE)
_COLUMN = re.compile(r"^    (\w+) [A-Z]", re.MULTILINE)


def declared() -> dict[str, set[str]]:
    """Columns of each table, as the migrations declare them."""
    text = "\n".join(migration.text for migration in migrations())
    columns = {name: set(_COLUMN.findall(body)) - {"INDEX"} for name, body in _CREATE.findall(text)}
    for name, column in _ADDED.findall(text):
        columns[name].add(column)
    return columns


def test_columns_agree_with_the_migrations() -> None:
    assert {name: set(table.columns) for name, table in TABLES.items()} == declared()


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
    assert plain["source_event_id"] == "t-0"
    governed = new_governance(source_event_id="src", job="govern@1", redactions={"email": 2}, trainable=True)
    row = as_dict("governed-steps", step(governed=governed, policy_spans=[]))
    assert (row["source_event_id"], row["redactions"], row["trainable"]) == ("src", {"email": 2}, True)
    assert (row["version_min"], row["version_max"]) == (None, None)


def test_a_trajectory_gives_its_row_and_one_for_each_step() -> None:
    found = list(rows("labeled-trajectories", trajectory("x", revision=3)))
    assert [table for table, _ in found] == ["trajectories", "trajectory_steps", *["reward_components"] * 2]
    columns = TABLES["trajectory_steps"].columns
    row = dict(zip(columns, found[1][1], strict=True))
    assert (row["trajectory_id"], row["revision"], row["step_index"]) == ("x", 3, 0)
    assert row["components"] == {"outcome": 1.0, "length": -0.25}
    row = dict(zip(TABLES["reward_components"].columns, found[3][1], strict=True))
    assert (row["label_id"], row["revision"], row["step_index"], row["name"]) == ("x/3", 3, 0, "length")
    assert (row["value"], row["weight"], row["kind"], row["policy_version"]) == (0.5, -0.5, "term", 1)


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


def test_terms_of_one_name_are_summed() -> None:
    record = trajectory()
    record["steps"][0]["components"] *= 2
    _, (_, row), *_ = rows("labeled-trajectories", record)
    assert row[TABLES["trajectory_steps"].columns.index("components")] == {"outcome": 2.0, "length": -0.5}
