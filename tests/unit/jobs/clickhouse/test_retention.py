"""Records whose rows would be deleted at once are found by the time of their partition."""

import re

from sample_records import T0_US, step, trajectory

from stepstream.config import StoreSettings
from stepstream.jobs.clickhouse.retention import days_of, expired_tables
from stepstream.jobs.clickhouse.rollup_refresh import OF_HOURS, OF_STEPS, ROLLUPS, statement

DAY_US = 86_400_000_000
DAYS = days_of(StoreSettings(contents_days=2, trajectories_days=3))


def test_a_row_expires_at_its_age_in_days() -> None:
    tables, record = ("steps", "step_contents"), step("t")
    assert expired_tables(DAYS, tables, record, T0_US + 2 * DAY_US - 1) == []
    assert expired_tables(DAYS, tables, record, T0_US + 2 * DAY_US) == ["step_contents"]


def test_times_outlast_the_steps_and_the_labels() -> None:
    """An erasure finds these by their times, and a day is deleted once all of its rows are older."""
    for steps, labels, times in ((3, 5, 12), (5, 3, 12), (0, 5, 0), (5, 0, 0), (0, 0, 0)):
        assert days_of(StoreSettings(steps_days=steps, trajectories_days=labels))["trajectory_times"] == times


def test_a_label_expires_by_the_time_at_which_its_trajectory_opened() -> None:
    label = trajectory("t", opened_at_us=T0_US) | {"ended_at_us": T0_US + DAY_US}
    assert expired_tables(DAYS, ["trajectories"], label, T0_US + 3 * DAY_US) == ["trajectories"]
    assert expired_tables({}, ["trajectories"], label, T0_US + 3 * DAY_US) == []


def test_hours_of_deleted_facts_are_never_due() -> None:
    for rollup in set(ROLLUPS) - set(OF_HOURS):
        text = re.sub(r"\s+", " ", statement(rollup, DAYS))
        since = "toDateTime(0, 'UTC')" if rollup in OF_STEPS else "toStartOfDay(now('UTC')) - INTERVAL 2 DAY"
        assert f"60 SECOND AND {'day' if rollup.endswith('_days') else 'hour'} >= {since}" in text
