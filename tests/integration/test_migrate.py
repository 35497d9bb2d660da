"""Test the migrations on the embedded store: the tables that they create, and the views under duplicates."""

import datetime
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.httpclient import HttpClient
from sample_records import (
    SAMPLES,
    SECOND_US,
    T0_US,
    alarm,
    checkpoint,
    component_stats,
    feedback,
    learner_update,
    step,
    training_decision,
    trajectory,
    worker_status,
)

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection, materialized_views
from stepstream.jobs.clickhouse.cluster import render
from stepstream.jobs.clickhouse.create_views import create_views
from stepstream.jobs.clickhouse.migrate import MigrationError, migrate, migrations
from stepstream.jobs.clickhouse.rollup_refresh import REFRESHED, create_refreshes
from stepstream.jobs.clickhouse.rows import TABLES, rows
from stepstream.jobs.clickhouse.views import views
from stepstream.topics.events import new_governance

TOTALS = """
SELECT (SELECT count() FROM steps FINAL) AS steps,
    (SELECT count() FROM trajectories FINAL) AS trajectories
"""


@pytest.fixture(scope="module")
def settings(own_database: Callable[[str], Settings]) -> Settings:
    return own_database("migrated")


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[Client]:
    assert migrate(settings) == [migration.name for migration in migrations()]
    with connection.connect(settings, database="migrated") as client:
        yield client


@pytest.fixture
def tables(client: Client) -> Client:
    for table in TABLES:
        client.command(f"TRUNCATE TABLE {table}")
    return client


def write(client: Client, *records: tuple[str, Any], times: int = 1) -> None:
    """Insert records `times` times, as redeliveries would: in other batches each time, unmerged."""
    client.command("SYSTEM STOP MERGES")
    for turn in range(times):
        batches: dict[str, list[tuple[object, ...]]] = {}
        for topic, record in records[turn % len(records) :] + records[: turn % len(records)]:
            for table, row in rows(topic, record):
                batches.setdefault(table, []).append(row)
        for table, batch in batches.items():
            client.insert(table, batch, column_names=TABLES[table].columns)


def test_a_second_run_applies_nothing(client: Client, settings: Settings) -> None:
    assert migrate(settings) == []


class ClusterStatements:
    """A client that keeps the statements instead of running them; its store has no views yet."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.result_rows: list[Any] = []

    def command(self, text: str, settings: object = None) -> None:
        self.texts.append(text)

    def query(self, _: str) -> "ClusterStatements":
        return self


def test_the_statements_for_a_cluster_parse(client: Client) -> None:
    cluster: Any = ClusterStatements()
    materialized_views.create_tables(cluster, "replicas")
    create_views(cluster, "replicas")
    create_refreshes(cluster, {}, 10, "replicas")
    materialized_views.create_refreshes(cluster, {}, 10, "replicas")
    assert len(cluster.texts) == len(views()) + 2 * len(REFRESHED) + 8 * len(materialized_views.materialized_views())
    texts = [render(text, "replicas") for migration in migrations() for text in migration.statements()]
    for text in texts + cluster.texts:
        if "INSERT INTO" not in text:
            (parsed,) = client.query("SELECT formatQuery({text:String})", {"text": text}).result_rows[0]
            assert "ON CLUSTER replicas" in parsed or "ON CLUSTER 'replicas'" in parsed, text
            assert ("CREATE TABLE" in text) is ("ENGINE = Replicated" in parsed), text


def test_a_changed_migration_raises_with_its_name(client: Client, settings: Settings) -> None:
    first = migrations()[0]
    record = ["name", "sha256", "applied_at"]
    later = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
    client.insert("schema_migrations", [(first.name, "other", later)], column_names=record)
    with pytest.raises(MigrationError, match=first.name):
        migrate(settings)
    client.insert("schema_migrations", [(first.name, first.sha256, later.replace(month=2))], column_names=record)
    assert migrate(settings) == []


def test_columns_agree_with_the_tables(client: Client) -> None:
    found: dict[str, set[str]] = {}
    for table, column in client.query(
        "SELECT table, name FROM system.columns WHERE database = currentDatabase() AND default_kind != 'MATERIALIZED'"
    ).result_rows:
        found.setdefault(table, set()).add(column)
    assert {name: set(table.columns) for name, table in TABLES.items()} == {name: found[name] for name in TABLES}


def first_row(tables: Client, query: str) -> dict[str, Any]:
    row = tables.query(query).first_item
    assert row is not None
    return row


def test_every_kind_of_record_is_stored(tables: Client) -> None:
    write(tables, *SAMPLES.items())
    for table in TABLES:
        assert tables.command(f"SELECT count() FROM {table}") == 1, table
    stored = first_row(tables, "SELECT * FROM steps")
    assert stored["occurred_at"].timestamp() == T0_US / SECOND_US
    assert (stored["version_min"], stored["version_max"], stored["logprob_sum"]) == (3, 4, -0.75)
    assert stored["tools"] == ["get"]
    assert "é\U0001f600" in first_row(tables, "SELECT messages FROM step_contents")["messages"]
    assert not {"key", "value"}.intersection(TABLES["dead_letters"].columns), (
        "a dead letter is not governed: its content must not be stored"
    )
    components = "SELECT arrayZip(component.name, component.value, component.weight) AS terms FROM trajectories"
    assert first_row(tables, components)["terms"] == [("outcome", 1.0, 1.0), ("length", 0.5, -0.5)]
    assert tables.query("SELECT size_bytes, trajectories, metrics FROM checkpoints").first_row == (10, 2, {"loss": 0.5})
    assert tables.command("SELECT toUnixTimestamp64Micro(occurred_at) FROM closures") == T0_US + 1
    times = "SELECT toUnixTimestamp64Milli(min(first)), toUnixTimestamp64Milli(max(last)) FROM trajectory_times"
    assert tables.query(f"{times} WHERE trajectory_key = sipHash64('t')").result_rows == [(T0_US // 1000,) * 2]
    dirty = tables.query("SELECT of, toUnixTimestamp(hour) FROM dirty_hours FINAL ORDER BY of").result_rows
    assert dirty == [(of, T0_US // SECOND_US // 3600 * 3600) for of in ("steps", "trajectories")]


def test_success_counts_each_trajectory_once_at_its_newest_revision(tables: Client) -> None:
    outcomes = [True] * 7 + [False] * 2
    first = [("labeled-trajectories", trajectory(f"t{n}", success=None)) for n in range(10)]
    second = [
        ("labeled-trajectories", trajectory(f"t{n}", revision=2, success=success)) for n, success in enumerate(outcomes)
    ]
    write(tables, *second, *first, times=3)
    row = first_row(tables, "SELECT * FROM success_by_policy_version")
    assert (row["model"], row["split"], row["policy_version"]) == ("demo", "train", 1)
    assert (row["trajectories"], row["outcomes"], row["successes"]) == (10, 9, 7)
    low, high = wilson(7, 9)
    assert math.isclose(row["success_rate"], 7 / 9)
    assert math.isclose(row["wilson_low"], low)
    assert math.isclose(row["wilson_high"], high)


def wilson(successes: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return centre - half, centre + half


@pytest.mark.parametrize("successes", [0, 5])
def test_the_interval_stays_within_0_and_1(tables: Client, successes: int) -> None:
    write(tables, *[("labeled-trajectories", trajectory(f"t{n}", success=n < successes)) for n in range(5)])
    row = first_row(tables, "SELECT * FROM success_by_policy_version")
    assert 0.0 <= row["wilson_low"] <= row["success_rate"] <= row["wilson_high"] <= 1.0


def test_the_component_chart_shows_only_the_newest_label(tables: Client) -> None:
    first = [("labeled-trajectories", trajectory(f"t{n}")) for n in range(4)]
    retracted = trajectory("t0", revision=2)
    retracted["steps"][0]["components"] = retracted["steps"][0]["components"][1:]
    write(tables, *first, ("labeled-trajectories", retracted), times=2)
    query = "SELECT component, n, trajectories, mean, paid FROM component_rates ORDER BY component"
    assert tables.query(query).result_rows == [("length", 4, 4, 0.5, -0.25), ("outcome", 3, 3, 1.0, 1.0)]


def test_component_means_and_alarms_are_of_one_tenant(tables: Client) -> None:
    stats = [component_stats(tenant, tenant=tenant) for tenant in ("default", "acme")]
    alarms = [alarm(alarm_id=tenant, tenant=tenant) for tenant in ("default", "acme")]
    write(tables, *(("component-stats", one) for one in stats), *(("alarms", one) for one in alarms), times=2)
    query = "SELECT tenant, trajectories FROM component_means WHERE kind = 'reward' ORDER BY tenant"
    assert tables.query(query).result_rows == [("acme", 10), ("default", 10)]
    query = "SELECT alarm_id FROM alarms_now WHERE tenant = 'acme'"
    assert tables.query(query).result_rows == [("acme",)]


def test_steps_per_second_counts_redelivered_steps_once(tables: Client) -> None:
    steps = [("governed-steps", step("t", index, T0_US + index * SECOND_US // 2)) for index in range(4)]
    write(tables, *steps, times=3)
    assert first_row(tables, "SELECT count() AS rows FROM steps")["rows"] > 4
    query = "SELECT count() FROM steps FINAL GROUP BY toStartOfSecond(occurred_at)"
    assert tables.query(query).result_rows == [(2,), (2,)]


def test_staleness_is_relative_to_the_newest_version_at_the_end(tables: Client) -> None:
    write(
        tables,
        ("checkpoints", checkpoint(1, T0_US)),
        ("checkpoints", checkpoint(2, T0_US + 10 * SECOND_US)),
        ("labeled-trajectories", trajectory("early", version=1, ended_at_us=T0_US + SECOND_US)),
        ("labeled-trajectories", trajectory("late", version=1, ended_at_us=T0_US + 20 * SECOND_US)),
        times=2,
    )
    found = tables.query("SELECT trajectory_id, staleness FROM trajectory_staleness ORDER BY 1").result_rows
    assert found == [("early", 0), ("late", 1)]


def test_a_workers_row_is_its_newest_status(tables: Client) -> None:
    starting = worker_status("3", T0_US + 3, newest_version=2, state="starting")
    serving = worker_status("1", T0_US + 1, version=1, newest_version=1)
    write(tables, ("worker-status", starting), ("worker-status", serving), times=2)
    row = first_row(tables, "SELECT * FROM workers")
    assert (row["worker_id"], row["version"], row["newest_version"], row["state"]) == ("worker-0", None, 2, "starting")


def test_retracted_feedback_does_not_count(tables: Client) -> None:
    thumbs = [
        feedback("a", name="thumbs", source="user", value=1.0),
        feedback("b", name="thumbs", source="user", value=0.0),
        feedback("c", name="thumbs", source="user", retracts="b"),
    ]
    write(tables, *[("governed-feedback", each) for each in thumbs], times=2)
    assert tables.query("SELECT name, source, events, mean FROM feedback_counts").result_rows == [
        ("thumbs", "user", 1, 1.0)
    ]


def counts(client: Client) -> dict[str, Any]:
    """Return all figures that the console and the views derive from steps and feedback."""
    queries = {view: f"SELECT count() FROM {view}" for view in ("feedback_counts", "step_consents")}
    queries |= {table: f"SELECT count() FROM {table} FINAL" for table in ("steps", "step_contents", "feedback")}
    queries |= {
        "feedback": "SELECT name, source, events, mean FROM feedback_counts ORDER BY name, source",
        "consent": "SELECT consent, count() FROM step_consents GROUP BY consent ORDER BY consent",
        "totals": TOTALS,
    }
    return {name: client.query(query).result_rows for name, query in queries.items()}


def test_a_replay_changes_no_count(tables: Client) -> None:
    def governed(record: Any, version: int) -> Any:
        source = record["event_id"]
        stamp = new_governance(source_event_id=source, job="govern@1", policy_version=version, trainable=True)
        return record | {"event_id": f"{source}/{version}", "governed": stamp}

    events: list[tuple[str, Any]]
    events = [("governed-steps", step("t", index, T0_US + index * SECOND_US // 2)) for index in range(4)]
    events += [("governed-feedback", feedback(name, name="thumbs", source="user", value=1.0)) for name in "ab"]
    events.append(("governed-feedback", feedback("c", name="thumbs", source="user", retracts="b")))
    write(tables, *((topic, governed(event, 0)) for topic, event in events))
    before = counts(tables)
    assert before["totals"][0][0] == 4
    assert before["feedback"] == [("thumbs", "user", 1, 1.0)]
    for version in (2, 1):
        write(tables, *((topic, governed(event, version)) for topic, event in events), times=2)
        assert counts(tables) == before
    assert {version for (version,) in tables.query("SELECT governed_by FROM steps FINAL").result_rows} == {2}


def test_other_views_answer(tables: Client) -> None:
    write(tables, ("checkpoints", checkpoint(1)), ("checkpoints", checkpoint(2)), times=2)
    assert tables.query("SELECT model, track, newest FROM latest_checkpoints").result_rows == [("demo", "stable", 2)]
    assert tables.query("SELECT * FROM dead_letter_counts").result_rows == []


def test_a_trained_trajectory_stays_trained_after_a_later_drop(tables: Client) -> None:
    late = {"outcome": "dropped", "reason": "trained_on_older_revision", "revision": 2, "update": None}
    decisions = [training_decision("a"), training_decision("a", event_id="late", **late)]
    for n, reason in enumerate(("superseded", "stale")):
        fields = {"outcome": "dropped", "reason": reason, "revision": n + 1, "update": None}
        decisions.append(training_decision("b", event_id=reason, **fields))
    write(tables, *(("training-decisions", decision) for decision in decisions), times=2)
    found = tables.query("SELECT outcome, reason, trajectories FROM training_outcomes ORDER BY outcome").result_rows
    assert found == [("dropped", "stale", 1), ("trained", "", 1)]


def test_a_decision_that_a_killed_learner_repeats_counts_once(tables: Client) -> None:
    first = training_decision("a")
    later = first | {"occurred_at_us": first["occurred_at_us"] + 86_400_000_000}
    write(tables, ("training-decisions", first), ("training-decisions", later), times=2)
    assert tables.query("SELECT count() FROM training_decisions FINAL").result_rows == [(1,)]


def test_learner_time_splits_an_update_into_shares(tables: Client) -> None:
    seconds = {"train": 6.0, "wait": 1.0, "read": 1.0}
    undone = learner_update(event_id="undone", occurred_at_us=T0_US - 1, seconds={"train": 1.0})
    write(tables, ("learner-updates", undone), ("learner-updates", learner_update(seconds=seconds)))
    columns = "update, total_s, train_share, wait_share, read_share, publish_share"
    row = tables.query(f"SELECT {columns} FROM learner_time").result_rows
    assert row == [(7, 8.0, 0.75, 0.125, 0.125, 0.0)]


def same_names(tenant: str, reward: float) -> list[tuple[str, Any]]:
    """Records of a tenant with the names and event ids that another one's have."""
    hold = SAMPLES["curation"] | {"tenant": tenant, "by": tenant}
    label = trajectory("t", tenant=tenant, reward=reward, flags=["held:by_hand"])
    return [
        ("governed-steps", step("t", tenant=tenant)),
        ("governed-feedback", feedback("f", tenant=tenant, trajectory_id="t", value=reward)),
        ("labeled-trajectories", label),
        ("closures", SAMPLES["closures"] | {"tenant": tenant, "trajectory_id": "t"}),
        ("curation", hold | {"trajectory_id": "t"}),
        ("governance-audit", SAMPLES["governance-audit"] | {"tenant": tenant}),
        ("training-decisions", training_decision("t", tenant=tenant)),
    ]


OF_TRAJECTORIES = (
    "steps",
    "feedback",
    "step_contents",
    "trajectories",
    "closures",
    "curation",
    "governance_audit",
    "training_decisions",
)


def test_tenants_with_the_same_names_have_rows_of_their_own(tables: Client) -> None:
    write(tables, *same_names("ours", 1.0), *same_names("theirs", 0.0), times=2)
    for table in OF_TRAJECTORIES:
        found = tables.query(f"SELECT tenant, count() FROM {table} FINAL GROUP BY tenant ORDER BY tenant").result_rows
        assert found == [("ours", 1), ("theirs", 1)], table
    for view in ("current_reward_components", "step_consents"):
        assert tables.query(f"SELECT uniqExact(tenant) FROM {view}").result_rows == [(2,)], view
    query = "SELECT tenant, by FROM quarantine ORDER BY tenant"
    assert tables.query(query).result_rows == [("ours", "ours"), ("theirs", "theirs")]
    retraction = feedback("r", tenant="theirs", trajectory_id="t", retracts="f")
    write(tables, ("governed-feedback", retraction))
    assert tables.query("SELECT events, mean FROM feedback_counts").result_rows == [(1, 1.0)]
    assert first_row(tables, TOTALS) == {"steps": 2, "trajectories": 2}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9", r"127\.0\.0\.1:9 .*STEPSTREAM_CLICKHOUSE_URL"),
        ("localhost", "STEPSTREAM_CLICKHOUSE_URL"),
    ],
)
def test_an_unusable_address_raises_with_the_setting(settings: Settings, url: str, message: str) -> None:
    clickhouse = settings.clickhouse.model_copy(update={"url": url, "deadline_s": 0.3})
    with pytest.raises(connection.StoreUnavailableError, match=message):
        migrate(settings.model_copy(update={"clickhouse": clickhouse}))


def test_connect_returns_the_ordinary_client(client: Client) -> None:
    assert type(client) is HttpClient


def test_of_two_labels_with_one_revision_the_greater_event_id_counts(tables: Client) -> None:
    """As for every other reader: unit/topics/test_label_precedence.py."""
    ids = [f"{digit}0000000-0000-5000-8000-00000000000{digit}" for digit in "0f8"]
    for order in (ids, ids[::-1], ids[1:] + ids[:1]):
        for event_id in order:
            write(tables, ("labeled-trajectories", trajectory(event_id=event_id, reward=ids.index(event_id))))
        assert tables.query("SELECT label_id FROM trajectories FINAL").result_rows == [(ids[1],)]
        assert {row for (row,) in tables.query("SELECT label_id FROM current_reward_components").result_rows} == {
            ids[1]
        }
        tables.command("TRUNCATE TABLE trajectories")
