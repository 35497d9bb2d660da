"""Test that all queries of success have one definition of an outcome."""

import pytest

from stepstream.jobs.clickhouse.outcome import OUTCOME
from stepstream.jobs.clickhouse.rollup_refresh import REFRESHED, statement
from stepstream.jobs.clickhouse.views import views
from stepstream.services.console.api.cohorts import cohorts
from stepstream.services.console.trajectories.search import Search
from stepstream.services.control import queries
from stepstream.services.control.optimise import read_view

QUERIES = {
    **{name: statement(name, {}) for name in REFRESHED},
    **{name: view.sql() for name, view in views().items()},
    "console, sums": cohorts(0, 1),
    "console, search": " ".join(Search({}, "failure").conditions()),
    "controller": queries._BEFORE + queries._TRAINED + queries._OF_VERSION,
    "optimise": read_view._NEWEST,
}


@pytest.mark.parametrize("name", QUERIES)
def test_no_query_judges_a_time_out_by_a_rule_of_its_own(name: str) -> None:
    assert "success IS NULL" not in QUERIES[name].replace(OUTCOME, "")
    assert "$outcome" not in QUERIES[name]


@pytest.mark.parametrize(
    "name",
    ["trajectory_hours", "task_hours", "task_outcomes", "console, sums", "console, search", "controller", "optimise"],
)
def test_rollups_views_console_and_controller_share_the_rule(name: str) -> None:
    assert OUTCOME in QUERIES[name]
