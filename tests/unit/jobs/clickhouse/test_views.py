"""The catalogue of views is complete, and the pages of docs/views match it."""

from pathlib import Path

import pytest

from stepstream.jobs.clickhouse.view_pages import pages
from stepstream.jobs.clickhouse.views import DIMENSIONS, View, ViewError, view, views

ROOT = Path(__file__).parents[4]
every_view = pytest.mark.parametrize("each", views().values(), ids=list(views()))


def test_the_pages_are_current() -> None:
    found = {path.name: path.read_text("utf-8") for path in (ROOT / "docs" / "views").glob("*.md")}
    assert found == pages(), "run `stepstream schemas generate`"


@every_view
def test_an_entry_is_complete(each: View) -> None:
    assert each.meaning.endswith(".")
    assert each.edges, "name its edge cases"
    assert each.name in each.example
    assert set(each.grain + each.choices) <= set(DIMENSIONS)
    assert all(column.meaning.endswith(".") for column in each.columns)
    assert set(each.series) <= {column.name for column in each.columns}


def test_a_grain_keeps_what_must_not_be_pooled() -> None:
    sql = view("success_by_version").sql(["day"])
    assert "GROUP BY tenant, model, harness_version, policy_version, day\n" in sql


def test_whole_cohorts_are_grouped_by_their_digest() -> None:
    by_cohort, by_agent = view("task_outcomes").sql(), view("task_outcomes").sql(["agent"])
    assert "GROUP BY cohort_digest, task_key\n" in by_cohort
    assert "GROUP BY tenant, model, harness_version, policy_version, task_key, agent\n" in by_agent
    assert "JOIN" not in by_agent
    # The tenant begins the primary key of `trajectories`.
    assert "GROUP BY tenant, cohort_digest, ended" in view("failure_clusters").sql()


def test_an_unknown_dimension_is_named() -> None:
    with pytest.raises(ViewError, match=r"cannot be grouped by colour: choose of tenant, model"):
        view("success_by_version").sql(["colour"])


def test_an_unknown_view_is_named() -> None:
    with pytest.raises(ViewError, match=r"no view nothing"):
        view("nothing")
