"""Test which rows of views are stored by cohort, when they count, and when they are deleted."""

from datetime import timedelta

import pytest
from clickhouse_connect.driver.client import Client
from stored_cohorts import store_cohorts, stored_cohorts
from view_rows import AT, TENANT, attempt, attempts, plant, read, read_one
from waiting import wait_until

from stepstream.config import Settings
from stepstream.jobs.clickhouse import materialized_views
from stepstream.jobs.clickhouse.materialized_views import begin_to_delete_replaced_rows
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rollup_refresh import statement as rollup_statement
from stepstream.jobs.clickhouse.views import COHORT, View, views
from stepstream.jobs.erasure.delete_from_tables import Target, delete_rows, trajectories_of
from stepstream.jobs.erasure.findings import Person
from stepstream.jobs.erasure.request import ErasureRequest

MATERIALIZED = [view.name for view in materialized_views.materialized_views()]
RANGE = "since = '2026-11-20 10:00:00', until = '2026-11-20 11:00:00'"


def mark_stored_rows(client: Client) -> None:
    """Make stored rows of failures differ from computed ones."""
    client.command(
        "ALTER TABLE failure_clusters_of_cohorts UPDATE failures = 99 WHERE true", settings={"mutations_sync": 2}
    )


def failures(client: Client, of_range: str = RANGE) -> int:
    (row,) = client.query(f"SELECT failures FROM failure_clusters({of_range})").result_rows
    return int(row[0])


@pytest.fixture
def stored(view_client: Client) -> Client:
    """A client of a database with the stored rows of one cohort, in which 99 attempts failed instead of 2."""
    plant(view_client, "trajectories", attempts("t", 4, 2, user="ada"))
    store_cohorts(view_client)
    mark_stored_rows(view_client)
    view_client.command("TRUNCATE TABLE dirty_hours")  # the hour is not due again
    return view_client


def test_the_views_whose_rows_are_stored_have_the_grain_of_cohorts() -> None:
    of_cohorts = {name for name, view in views().items() if "cohorts" in view.reads and set(COHORT) <= set(view.grain)}
    assert set(MATERIALIZED) == of_cohorts


def test_stored_rows_count_in_a_range_with_all_attempts(stored: Client) -> None:
    assert failures(stored) == 99
    assert stored_cohorts(stored) == dict.fromkeys(MATERIALIZED, 1)
    wider = "since = '2025-01-01', until = '2026-11-20 11:59:00'"
    assert failures(stored, wider) == 99


@pytest.mark.parametrize(
    "cut",
    [
        "since = '2026-11-20 10:00:01', until = '2026-11-20 11:00:00'",
        "since = '2026-11-20 10:00:00', until = '2026-11-20 10:59:59'",
    ],
)
def test_a_range_that_may_cut_the_cohort_computes_its_rows(stored: Client, cut: str) -> None:
    assert failures(stored, cut) == 2


def test_a_new_cohort_counts_before_its_rollup(stored: Client) -> None:
    new = attempt("new/0", False, version_max=9) | {"tenant": "else"}
    stored.insert("trajectories", [list(new.values())], column_names=list(new))
    query = f"SELECT tenant, policy_version, tasks FROM efficiency({RANGE}) ORDER BY tenant, policy_version"
    assert stored.query(query).result_rows == [(TENANT, 3, 1), ("else", 9, 1)]


def test_clear_and_classic_take_the_stored_parts(stored: Client) -> None:
    of_range = f"FROM clear({RANGE}) AS a JOIN classic({RANGE}) AS b USING (tenant, agent)"
    figures = f"SELECT a.tasks, b.tasks, a.seconds_per_task, b.p95_s, a.pass_hat_8 {of_range}"
    computed = stored.query(figures).result_rows
    assert computed == [(1, 1, 0, 0, None)]
    stored.command(
        "ALTER TABLE efficiency_of_cohorts UPDATE seconds_per_task = 9, p95_s = 8 WHERE true",
        settings={"mutations_sync": 2},
    )
    assert stored.query(figures).result_rows == [(1, 1, 9, 8, None)]


def test_another_grain_computes_the_rows(stored: Client) -> None:
    query = views()["failure_clusters"].sql(["day"])
    rows = stored.query(query, {"since": "2026-11-20", "until": "2026-11-21"}).named_results()
    assert [row["failures"] for row in rows] == [2]


def test_an_attempt_that_changed_since_computes_the_rows(stored: Client) -> None:
    plant(stored, "trajectories", [attempt("t/5", False)])
    assert failures(stored) == 3
    # Until the cohort is at rest again.
    stored.command(
        f"INSERT INTO failure_clusters_of_cohorts {materialized_views.statement(views()['failure_clusters'], {})}"
    )
    assert failures(stored) == 3


def test_an_attempt_of_another_cohort_leaves_the_stored_rows(stored: Client) -> None:
    later = {"opened_at": AT + timedelta(hours=1), "agent": "b"}
    plant(stored, "trajectories", [attempt("t/6", False, **later)])
    found = read(stored, "failure_clusters")
    assert sorted((row["agent"], row["failures"]) for row in found) == [("a", 99), ("b", 1)]


def test_a_revision_in_the_same_hour_of_another_cohort_computes_both(stored: Client) -> None:
    """A refresh writes a whole hour again: that no attempt of the first cohort changed is not known."""
    plant(stored, "trajectories", [attempt("t/6", False, agent="b")])
    assert sorted(row["failures"] for row in read(stored, "failure_clusters")) == [1, 2]


def test_rows_stored_a_moment_ago_do_not_count_yet(view_client: Client) -> None:
    """Their parts may not all be visible."""
    plant(view_client, "trajectories", attempts("t", 4, 2))
    store_cohorts(view_client, hours_ago=0)
    mark_stored_rows(view_client)
    assert failures(view_client) == 2


def test_a_cohort_in_its_current_hour_is_not_stored(view_client: Client) -> None:
    (now,) = view_client.query("SELECT now()").result_rows[0]
    plant(view_client, "trajectories", attempts("t", 4, 2, opened_at=now))
    plant(view_client, "trajectories", attempts("t", 4, 2, agent="other"))
    store_cohorts(view_client)
    assert stored_cohorts(view_client) == dict.fromkeys(MATERIALIZED, 1)


def test_a_cohort_without_failures_is_not_computed_again(view_client: Client) -> None:
    plant(view_client, "trajectories", attempts("t", 4, 4))
    store_cohorts(view_client)
    assert read(view_client, "failure_clusters") == []
    due = materialized_views.statement(views()["failure_clusters"], {}, rest_s=0)
    assert view_client.query(f"SELECT count() FROM ({due})").result_rows == [(0,)]


def test_a_cohort_whose_facts_a_retention_may_have_deleted_is_not_stored(view_client: Client) -> None:
    plant(view_client, "trajectories", attempts("t", 4, 2, opened_at=AT - timedelta(days=400)))
    statement = materialized_views.statement
    for days, expected in (({}, True), ({"trajectories": 30}, False)):
        due = statement(views()["failure_clusters"], days, rest_s=0)
        [(rows,)] = view_client.query(f"SELECT count() FROM ({due})").result_rows
        assert (rows > 0) is expected


def test_an_erasure_leaves_no_row_that_names_the_trajectory(stored: Client) -> None:
    ada = Person(TENANT, "ada")
    delete_rows(stored, [Target(ada, trajectories_of(stored, [ada])[ada], ErasureRequest("t", 0))])
    assert stored.query("SELECT count() FROM failure_clusters_of_cohorts WHERE NOT is_marker").result_rows == [(0,)]
    assert stored_cohorts(stored) == dict.fromkeys(set(MATERIALIZED) - {"failure_clusters"}, 1)
    assert read(stored, "failure_clusters") == []
    # The rollup follows, and with it the views of which no row names a trajectory.
    stored.command(f"INSERT INTO task_hours {rollup_statement('task_hours', {})}")
    assert read(stored, "task_outcomes") == []


def test_an_erasure_leaves_the_rows_of_another_tenant_with_the_same_names(view_client: Client) -> None:
    for tenant in (TENANT, "else"):
        plant(view_client, "trajectories", attempts("t", 4, 2, user="ada", tenant=tenant))
    store_cohorts(view_client)
    ada = Person(TENANT, "ada")
    delete_rows(view_client, [Target(ada, trajectories_of(view_client, [ada])[ada], ErasureRequest("t", 0))])
    named = "SELECT tenant, newest_trajectory_id FROM failure_clusters_of_cohorts WHERE NOT is_marker"
    assert view_client.query(named).result_rows == [("else", "t/3")]
    assert [row["tenant"] for row in read(view_client, "failure_clusters")] == ["else"]


def test_replaced_rows_are_deleted_after_a_day(stored: Client) -> None:
    rows = "SELECT failures FROM failure_clusters_of_cohorts WHERE NOT is_marker"
    stored.command("SYSTEM STOP MERGES failure_clusters_of_cohorts")
    begin_to_delete_replaced_rows(stored)
    assert stored.query(rows).result_rows == [(99,)]
    for hours in (20, 30):
        stored.command(
            f"INSERT INTO failure_clusters_of_cohorts SELECT * REPLACE (version - INTERVAL {hours} HOUR AS version, "
            f"{hours} AS failures) FROM failure_clusters_of_cohorts WHERE failures = 99"
        )
    stored.command("SYSTEM START MERGES failure_clusters_of_cohorts")
    begin_to_delete_replaced_rows(stored)
    wait_until(lambda: 30 not in {value for (value,) in stored.query(rows).result_rows})
    assert failures(stored) == 99


def test_a_changed_definition_forgets_the_stored_rows(
    stored: Client, view_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def comment(view: View) -> str:
        return f"Another definition of {view.name}."

    with monkeypatch.context() as then:
        then.setattr(materialized_views, "_comment", comment)
        assert materialized_views.create_tables(stored) == MATERIALIZED
        assert materialized_views.create_tables(stored) == []
    assert stored_cohorts(stored) == {}
    assert failures(stored) == 2
    migrate(view_settings)
    query = (
        "SELECT view, exception FROM system.view_refreshes "
        "WHERE last_success_time IS NOT NULL AND view IN {names:Array(String)}"
    )
    names = [f"{name}_refresh" for name in MATERIALIZED]
    refreshed = {(name, "") for name in names}
    wait_until(
        lambda: {(view, error) for view, error in stored.query(query, {"names": names}).result_rows} == refreshed
    )
    for name in names:
        stored.command(f"DROP VIEW {name} SYNC")
    assert read_one(stored, "failure_clusters")["failures"] == 2
