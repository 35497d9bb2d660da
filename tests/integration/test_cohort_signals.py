"""Test that stored rows of views count until feedback comes that the view reads."""

import pytest
from clickhouse_connect.driver.client import Client
from stored_cohorts import store_cohorts
from view_rows import TENANT, attempts, plant, read_one, signal

from stepstream.jobs.clickhouse.materialized_views import materialized_views
from stepstream.jobs.clickhouse.rollup_refresh import statement

READ = {
    "calibration": "n",
    "consistency": "runs",
    "keep_rate": "changes",
    "production_signals": "reverted",
    "robustness": "plain_tasks",
    "safety": "runs",
    "skill_lift": "on_outcomes",
}
"""A column that counts, of each view that reads feedback; it is 99 in stored rows here."""
FEEDBACK = (("confidence", 0.5, ""), ("violation", 0.0, ""), ("proposed", 4, ""), ("kept", 3, ""), ("assigned", 1, "s"))


@pytest.fixture
def stored(view_client: Client) -> Client:
    """A client of a database with the stored rows of one cohort."""
    plant(view_client, "trajectories", attempts("t", 4, 2))
    plant(
        view_client, "feedback", [signal("t/0", name, value, category, hours=2) for name, value, category in FEEDBACK]
    )
    store_cohorts(view_client)
    for view, column in READ.items():
        view_client.command(
            f"ALTER TABLE {view}_of_cohorts UPDATE {column} = 99 WHERE true", settings={"mutations_sync": 2}
        )
    view_client.command("TRUNCATE TABLE dirty_hours")  # the hour is not due again
    assert computed(view_client) == set()
    return view_client


def computed(client: Client) -> set[str]:
    """Return the views whose rows are not the stored ones."""
    return {
        view
        for view, column in READ.items()
        if read_one(client, view, "age_hours = 1" if view == "keep_rate" else "1")[column] != 99
    }


@pytest.mark.parametrize(
    ("name", "views"),
    [
        ("confidence", {"calibration"}),
        ("perturbation", {"consistency", "robustness"}),
        ("kept", {"keep_rate"}),
        ("escalated", {"production_signals"}),
        ("attack_resisted", {"safety"}),
        ("assigned", {"skill_lift"}),
        ("thumbs", set()),
    ],
)
def test_late_feedback_computes_the_rows_of_the_views_that_read_it(stored: Client, name: str, views: set[str]) -> None:
    plant(stored, "feedback", [signal("t/1", name, 1, "fault" if name == "perturbation" else "s", hours=50)])
    assert computed(stored) == views


def test_feedback_that_is_taken_back_computes_the_rows_of_every_view_that_reads_feedback(stored: Client) -> None:
    plant(stored, "feedback", [signal("t/1", "any", hours=50) | {"retracts": "another"}])
    assert computed(stored) == set(READ)


def test_feedback_about_a_trajectory_of_another_tenant_leaves_the_stored_rows(stored: Client) -> None:
    plant(stored, "feedback", [signal("t/1", "confidence", 1, hours=50) | {"tenant": "else"}])
    assert computed(stored) == set()


def test_feedback_before_its_trajectory_counts_once_the_trajectory_comes(stored: Client) -> None:
    plant(stored, "feedback", [signal("late/0", "reverted", 1)])
    assert computed(stored) == set()
    plant(stored, "trajectories", attempts("late", 1, 1))
    assert read_one(stored, "production_signals")["reverted"] == 1


def test_stored_rows_do_not_depend_on_the_range(view_client: Client) -> None:
    """The clock of an agent may be ahead of that of a person who gives feedback."""
    plant(view_client, "trajectories", attempts("t", 4, 2))
    plant(view_client, "feedback", [signal("t/0", "reverted", 1, hours=-2)])
    for since in ("2026-11-20 10:00:00", "2026-11-01 00:00:00"):
        query = f"SELECT reverted FROM production_signals(since = '{since}', until = '2026-11-21')"
        assert view_client.query(query).result_rows == [(1,)]


def test_marks_of_an_earlier_refresh_are_not_read_again(stored: Client) -> None:
    plant(stored, "feedback", [signal("t/1", "confidence", 1, hours=50)])
    select = statement("cohort_signals", {})
    names = f"SELECT tenant, name FROM ({select}) ORDER BY tenant"
    assert stored.query(names).result_rows == [("", ""), (TENANT, "confidence")]
    stored.command("INSERT INTO cohort_signals (tenant, changed) SELECT '', now64(6) + INTERVAL 2 MINUTE")
    assert stored.query(names).result_rows == [("", "")]


def test_what_has_signals_or_stored_rows_but_no_attempts_is_no_cohort(stored: Client) -> None:
    """The marker of a refresh has the digest 0."""
    for view in materialized_views():
        columns, values = "(view, cohort_digest, version)", f"'{view.name}', 1, now64(6)"
        stored.command(f"INSERT INTO materialized_cohorts {columns} SELECT {values}")
        digests = stored.query(f"SELECT cohort_digest FROM ({view.cohort_versions()})").result_rows
        assert digests == stored.query("SELECT DISTINCT cohort_digest FROM cohort_times").result_rows
