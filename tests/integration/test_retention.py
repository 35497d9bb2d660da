"""Test that rows are deleted at the ages of the settings `store.…_days`."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from insert_facts import insert
from sample_records import SECOND_US, feedback, step, trajectory

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.migrate import migrate

HOUR_US = 3600 * SECOND_US


@pytest.fixture(scope="module")
def settings(own_database: Callable[[str], Settings]) -> Settings:
    return own_database("retention")


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[Client]:
    migrate(settings)
    with connection.connect(settings, database="retention") as client:
        yield client


def test_ages_are_ttls_of_the_tables(client: Client, settings: Settings) -> None:
    engine = "SELECT engine_full FROM system.tables WHERE database = 'retention' AND name = {name:String}"
    kept = settings.store.model_copy(update={"trajectories_days": 30, "worker_status_days": 7})
    for store, expected in ((kept, True), (kept, True), (settings.store, False)):
        migrate(settings.model_copy(update={"store": store}))
        for name, ttl in (
            ("trajectories", "toDateTime(opened_at) + toIntervalDay(30)"),
            ("worker_status", "toDateTime(occurred_at) + toIntervalDay(7)"),
        ):
            assert (f"TTL {ttl} " in str(client.command(engine, {"name": name}))) is expected


def test_rows_older_than_their_age_go_while_others_of_their_week_stay(client: Client, settings: Settings) -> None:
    ages = dict.fromkeys(("steps_days", "contents_days", "trajectories_days", "feedback_days"), 30)
    migrate(settings.model_copy(update={"store": settings.store.model_copy(update=ages)}))
    border_us = time.time_ns() // 1000 - 30 * 24 * HOUR_US
    events: list[tuple[str, Any]] = []
    for name, at_us in (("older", border_us - HOUR_US), ("younger", border_us + HOUR_US)):
        events += [
            ("governed-steps", step(name, 0, at_us=at_us)),
            ("governed-feedback", feedback(trajectory_id=name, occurred_at_us=at_us)),
            ("labeled-trajectories", trajectory(name, opened_at_us=at_us)),
        ]
    insert(client, events)
    for table in ("steps", "step_contents", "feedback", "trajectories"):
        client.command(f"OPTIMIZE TABLE {table} FINAL")
        assert client.query(f"SELECT trajectory_id FROM {table}").result_rows == [("younger",)], table
