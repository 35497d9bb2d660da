"""Test rollups and views of databases of earlier releases with data in them."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from insert_facts import insert
from sample_records import SECOND_US, T0_US, feedback, step, trajectory
from stored_cohorts import store_cohorts

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection, materialized_views, rollup_refresh
from stepstream.jobs.clickhouse import migrate as migrate_module
from stepstream.jobs.clickhouse.migrate import migrate, migrations
from stepstream.jobs.clickhouse.rollup_refresh import refresh, statement

HOUR_US = 3600 * SECOND_US
RANGE = f"since = toDateTime({T0_US // SECOND_US - 86400}), until = toDateTime({T0_US // SECOND_US + 86400})"


@pytest.fixture
def migrate_before(monkeypatch: pytest.MonkeyPatch) -> Callable[[Settings, str], None]:
    """Return a function that applies the migrations before a number, as an earlier release did."""

    def apply(settings: Settings, number: str) -> None:
        earlier = [one for one in migrations() if one.name < number]
        created = {table for one in earlier for table in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", one.text)}
        with monkeypatch.context() as then:
            then.setattr(migrate_module, "migrations", lambda: earlier)
            then.setattr(rollup_refresh, "REFRESHED", [name for name in rollup_refresh.REFRESHED if name in created])
            then.setattr(materialized_views, "materialized_views", list)
            migrate(settings)

    return apply


def failed(name: str, agent: str, opened_us: int, **fields: Any) -> tuple[str, Any]:
    record = trajectory(name, revision=1, opened_at_us=opened_us, user=None, agent=agent)
    return "labeled-trajectories", record | {"success": False} | fields


def test_hours_of_earlier_releases_count_time_outs_as_failures(
    own_database: Callable[[str], Settings], migrate_before: Callable[[Settings, str], None]
) -> None:
    """An attempt cut off by a limit without any outcome is a failure, in a rate by hour as in one by task."""
    settings = own_database("time_outs")
    migrate_before(settings, "0035")
    with connection.connect(settings, database="time_outs") as client:
        client.command("DROP VIEW trajectory_hours_refresh SYNC")
        insert(client, [failed("t", "a", T0_US, end="truncated", success=None)])
        client.command(
            "INSERT INTO trajectory_hours (hour, tenant, agent, model, environment, harness_version, policy_version, "
            "track, split, trajectories, truncated, version) "
            "SELECT toStartOfHour(toDateTime(opened_at, 'UTC')), tenant, agent, model, environment, "
            "harness_version, version_max, track, split, 1, 1, now64(6, 'UTC') FROM trajectories"
        )
        client.command("TRUNCATE TABLE dirty_hours")
        migrate(settings)
        refresh(client)
        counted = "SELECT sum(outcomes), sum(successes), sum(truncated) FROM trajectory_hours FINAL"
        assert client.query(counted).result_rows == [(1, 0, 1)]
        of_view = f"SELECT attempts, outcomes, success_rate FROM success_by_version({RANGE})"
        assert client.query(of_view).result_rows == [(1, 1, 0.0)]


def test_steps_of_earlier_releases_have_times_to_the_first_token(
    own_database: Callable[[str], Settings], migrate_before: Callable[[Settings, str], None]
) -> None:
    settings = own_database("first_tokens")
    migrate_before(settings, "0044")
    with connection.connect(settings, database="first_tokens") as client:
        measured: Any = [step("t", n, T0_US, first_token_ms=2.0 + 6 * n) for n in range(2)]
        insert(client, [failed("t", "a", T0_US), *(("governed-steps", one) for one in measured)])
        client.command("TRUNCATE TABLE dirty_hours")  # its marks are as old as a week, at most
        for _ in range(2):
            migrate(settings)
            refresh(client)
            found = "SELECT agent, policy_version, steps, length(ms.bin) FROM first_token_hours FINAL WHERE steps > 0"
            assert client.query(found).result_rows == [("a", 4, 2, 2)]


def test_hours_of_earlier_releases_have_days(
    own_database: Callable[[str], Settings], migrate_before: Callable[[Settings, str], None]
) -> None:
    """Also of facts that are gone, by tenant; the migration and the refresh add no hour twice."""
    settings = own_database("days")
    migrate_before(settings, "0050")
    with connection.connect(settings, database="days") as client:
        client.command("DROP VIEW trajectory_hours_refresh SYNC")
        put = [
            failed(f"{tenant}{hour}", "a", T0_US + hour * HOUR_US, tenant=tenant, success=success)
            for tenant, hours in (("one", (0, 1, 24)), ("two", (0,)))
            for hour, success in zip(hours, (True, False, True), strict=False)
        ]
        insert(client, put)
        client.command(f"INSERT INTO trajectory_hours {statement('trajectory_hours', {})}")
        client.command("TRUNCATE TABLE dirty_hours")
        client.command("TRUNCATE TABLE trajectories")
        query = (
            "SELECT tenant, toUInt32(day - toDate({day:UInt32})), trajectories, successes, reward_sum "
            "FROM trajectory_days FINAL WHERE trajectories > 0 ORDER BY tenant, day"
        )
        for _ in range(2):
            migrate(settings)
            refresh(client)
            found = client.query(query, {"day": T0_US // SECOND_US // 86400}).result_rows
            assert [row[:4] for row in found] == [("one", 0, 2, 1), ("one", 1, 1, 1), ("two", 0, 1, 1)]
            assert found[0][4] == 2 * found[1][4]


@pytest.mark.parametrize("number", ["0039", "0040"])
def test_attempts_of_earlier_releases_keep_their_cohorts(
    own_database: Callable[[str], Settings], migrate_before: Callable[[Settings, str], None], number: str
) -> None:
    """Views name the cohorts of rows from before `cohorts`, and store them, also of hours whose facts are gone."""
    settings = own_database(f"cohorts_before_{number}")
    migrate_before(settings, number)
    with connection.connect(settings, database=settings.clickhouse.database) as client:
        client.command("DROP VIEW task_hours_refresh SYNC")
        insert(client, [failed("gone", "a0", T0_US), failed("kept", "a1", T0_US + HOUR_US)])
        client.command(f"INSERT INTO task_hours {statement('task_hours', {})}")
        client.command("TRUNCATE TABLE dirty_hours")  # as by a retention: no hour is computed again
        client.command("ALTER TABLE trajectories DELETE WHERE trajectory_id = 'gone' SETTINGS mutations_sync = 2")
        of_tasks = f"SELECT tenant, agent, attempts, successes FROM task_outcomes({RANGE}) ORDER BY agent"
        clusters = f"SELECT agent, newest_trajectory_id, error_class FROM failure_clusters({RANGE})"
        for _ in range(2):
            migrate(settings)
            assert client.query(of_tasks).result_rows == [("default", "a0", 1, 0), ("default", "a1", 1, 0)]
            assert client.query(clusters).result_rows == [("a1", "kept", "")]
            store_cohorts(client)


@pytest.mark.parametrize("done", [0, 2, 3, 5, 7, 9])
def test_times_of_earlier_releases_become_times_by_user(
    own_database: Callable[[str], Settings], migrate_before: Callable[[Settings, str], None], done: int
) -> None:
    """Also if the migration was interrupted, and rows came in between."""
    settings = own_database(f"times_after_{done}")
    migrate_before(settings, "0042")
    statements = next(one for one in migrations() if one.name.startswith("0042")).statements()
    assert len(statements) == 9
    query = (
        "SELECT user_key = sipHash64('ada'), user_key = 0, toUnixTimestamp(first), toUnixTimestamp(last) "
        "FROM trajectory_times FINAL WHERE trajectory_key = sipHash64('t') AND tenant = 'default' ORDER BY ALL"
    )
    opened_s = T0_US // SECOND_US
    with connection.connect(settings, database=settings.clickhouse.database) as client:
        steps = [
            step("t", n, user=user, at_us=T0_US + 60 * n * SECOND_US) for n, user in enumerate(("ada", "bob", None))
        ]
        insert(client, [("governed-steps", one) for one in steps[:2]])
        insert(client, [("labeled-trajectories", trajectory("t", user="ada", opened_at_us=T0_US - HOUR_US))])
        for statement in statements[:done]:
            client.command(statement)
        insert(client, [("governed-steps", steps[2])])
        for _ in range(2):
            migrate(settings)
            assert client.query(query).result_rows == [
                (0, 0, opened_s + 60, opened_s + 60),
                (0, 1, opened_s + 120, opened_s + 120),
                (1, 0, opened_s - 3600, opened_s),
            ]
        left = "SELECT count() FROM system.tables WHERE database = currentDatabase() AND name = 'trajectory_times_0041'"
        assert client.query(left).result_rows == [(0,)]


def events_of(name: str, day: int, tenant: str = "default") -> list[tuple[str, Any]]:
    """Return a step, feedback and the label of one trajectory."""
    at_us = T0_US + 24 * HOUR_US * day
    of: dict[str, Any] = {"tenant": tenant, "user": "ada"}
    return [
        ("governed-steps", step(name, 0, at_us=at_us, **of)),
        ("governed-feedback", feedback(trajectory_id=name, occurred_at_us=at_us, **of)),
        ("labeled-trajectories", trajectory(name, opened_at_us=at_us, **of)),
    ]


@pytest.mark.parametrize("done", [0, 1, 15, 27])
def test_days_of_earlier_releases_become_weeks(
    own_database: Callable[[str], Settings], migrate_before: Callable[[Settings, str], None], done: int
) -> None:
    """Also if the migrations were interrupted, and rows came in between. Hidden rows do not come back.

    Two tenants have a trajectory of the same name.
    """
    settings = own_database(f"weeks_after_{done}")
    migrate_before(settings, "0051")
    statements = [text for one in migrations() if "0051" <= one.name < "0054" for text in one.statements()]
    assert len(statements) == 33
    tables = ("steps", "step_contents", "feedback", "trajectories")
    with connection.connect(settings, database=settings.clickhouse.database) as client:
        insert(client, [event for day in range(9) for event in events_of(f"t{day}", day)])
        insert(client, events_of("hidden", 8) + events_of("t8", 8, "other"))
        for table in tables:
            client.command(f"DELETE FROM {table} WHERE trajectory_id = 'hidden'")
        for text in statements[:done]:
            client.command(text)
        between = [] if done == 1 else ["between"]  # there is no table of steps then
        insert(client, [event for name in between for event in events_of(name, 1)])
        client.command("TRUNCATE TABLE dirty_hours")
        for _ in range(2):
            migrate(settings)
            for table in tables:
                found = client.query(f"SELECT tenant, trajectory_id FROM {table} FINAL ORDER BY ALL").result_rows
                names = [*between, *(f"t{day}" for day in range(9))]
                assert found == [*(("default", name) for name in names), ("other", "t8")], table
            refresh(client)
            counted = "SELECT sum(trajectories), (SELECT sum(steps) FROM step_hours FINAL) FROM trajectory_hours FINAL"
            assert client.query(counted).result_rows == [(10 + len(between),) * 2]
            timed = "SELECT count() FROM trajectory_times FINAL WHERE trajectory_key = sipHash64('between')"
            assert client.query(timed).result_rows == [(len(between),)]
        of_database = "SELECT name FROM system.tables WHERE database = currentDatabase()"
        weekly = client.query(f"{of_database} AND startsWith(partition_key, 'toMonday')").result_rows
        assert {name for (name,) in weekly} == set(tables)
        merged = client.query(f"{of_database} AND position(engine_full, 'force_merge_seconds = 86400') > 0").result_rows
        assert merged == [("step_contents",)]
        left = f"{of_database} AND endsWith(name, '_0050')"
        assert client.query(left).result_rows == []
