"""Store the rows of views by cohort, as the refreshes of `materialized_views.py` do once cohorts are at rest."""

from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse.materialized_views import materialized_views, statement

_NOW = "now64(6, 'UTC')"


def store_cohorts(client: Client, hours_ago: int = 1) -> None:
    """Store the rows of every cohort as if that had been some hours ago, and an hour after the attempts changed last.

    A later call needs fewer hours: the first one's rows count where attempts have not changed in between.
    """
    for table in ("cohort_times", "cohort_signals"):
        client.command(
            f"ALTER TABLE {table} UPDATE changed = changed - INTERVAL {hours_ago + 1} HOUR WHERE tenant != ''",
            settings={"mutations_sync": 2},
        )
    client.command("TRUNCATE TABLE feedback_marks")  # a refresh reads those of the last minute again
    for view in materialized_views():
        text = statement(view, {}, rest_s=0).replace(_NOW, f"({_NOW} - INTERVAL {hours_ago} HOUR)")
        client.command(f"INSERT INTO {view.stored} {text}")


def stored_cohorts(client: Client) -> dict[str, int]:
    """Return the number of cohorts whose rows are stored, by view."""
    query = "SELECT view, count() FROM materialized_cohorts FINAL GROUP BY view"
    return {str(view): int(cohorts) for view, cohorts in client.query(query).result_rows}
