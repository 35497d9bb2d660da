"""Store the rows that views have of cohorts at rest (`VIEW_of_cohorts`), so that long ranges need not compute them.

An average over tasks is no sum of averages over hours: a view that has one reads every attempt of its range. But the
rows of a cohort do not depend on the range if all of its attempts are in it. So a refresh computes the rows of a cohort
once it is at rest: its attempts have not changed for five minutes, and for a hundredth of the time that it spans, so
that one that goes on for months is not computed again and again. The statement is the view's own definition.

The view takes the stored rows of a cohort unless the range cuts it or its attempts changed since
(`views/fragments/not_stored.sql`), and computes the others. Each row has the version of its cohort in
`materialized_cohorts`: rows of other versions do not count, and are deleted once a day. A marker row, which becomes a
row there with the hours of the cohort, says that the cohort has been computed, also if it has no rows.

For a view that reads feedback, a cohort also changes when feedback of a name that it reads comes
(`rollups/cohort_signals.sql`).
"""

import hashlib
import logging
from collections.abc import Mapping

from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse.cluster import render
from stepstream.jobs.clickhouse.rollup_refresh import complete_since, now_of, template
from stepstream.jobs.clickhouse.views import COHORT, DIMENSION_TYPES, View, views

log = logging.getLogger(__name__)

LEAST_REFRESH_S = 180
"""Seconds between two refreshes, at least: one that finds no cohort takes a quarter of a second of a core."""
REST_S = 300
"""Seconds for which the attempts of a cohort must not have changed, if it spans 30,000 seconds at most."""
_COMMENTS = "SELECT name, comment FROM system.tables WHERE database = currentDatabase() AND name LIKE '%_of_cohorts'"


def materialized_views() -> list[View]:
    """Return the views of which rows are stored."""
    return [view for view in views().values() if view.materialized]


def statement(view: View, days: Mapping[str, int], cluster: str = "", *, rest_s: int = REST_S) -> str:
    """Return the SELECT whose rows are those of the cohorts that are due.

    `days` and `cluster` as in `rollup_refresh.statement`; `rest_s`: as `REST_S`.
    """
    types, now = _types(view), now_of(cluster)
    due = template("due_cohorts").substitute(
        versions=view.cohort_versions(), now=now, rest_s=rest_s, complete_since=complete_since("trajectories", days)
    )
    ids = {"tenant": "id.1 AS tenant", "cohort_digest": "id.2 AS cohort_digest"}
    quoted = {name: type_.replace("'", "\\'") for name, type_ in types.items()}
    marker = [ids.get(name, f"defaultValueOfTypeName('{type_}') AS {name}") for name, type_ in quoted.items()]
    return f"""WITH
(
{due.rstrip()}
) AS due
SELECT *, {now} AS version
FROM
(
    SELECT {", ".join(types)}, false AS is_marker, toDateTime(0, 'UTC') AS first_hour, toDateTime(0, 'UTC') AS last_hour
    FROM
    (
        {view.cohort_rows()}
    )
    UNION ALL
    SELECT {", ".join(marker)}, true AS is_marker, id.3 AS first_hour, id.4 AS last_hour
    FROM (SELECT arrayJoin(materialize(due).1) AS id)
)
SETTINGS max_bytes_before_external_group_by = 1000000000"""


def create_tables(client: Client, cluster: str = "") -> list[str]:
    """Create the tables that are missing, and empty those of another definition; return the names of their views.

    Raises:
        ClickHouseError: the store is unavailable, or lacks a table of the migrations.
    """
    comments = {str(name): str(comment) for name, comment in client.query(_COMMENTS).result_rows}
    changed = [view for view in materialized_views() if comments.get(view.stored) != _comment(view)]
    for view in changed:
        columns = ",\n    ".join(f"{name} {type_}" for name, type_ in _types(view).items())
        keys = ", ".join(("is_marker", "tenant", "cohort_digest", *view.row_keys))
        for text in (
            f"DROP VIEW IF EXISTS {view.name}_refresh SYNC",
            f"DROP VIEW IF EXISTS {view.stored}_marked SYNC",
            f"DROP TABLE IF EXISTS {view.stored} SYNC",
            # After the table: a refresh that another process created must leave no marker without rows.
            f"ALTER TABLE materialized_cohorts DELETE WHERE view = '{view.name}'",
            f"CREATE TABLE IF NOT EXISTS {view.stored}\n(\n    {columns},\n"
            "    is_marker Bool,\n    first_hour DateTime('UTC'),\n    last_hour DateTime('UTC'),\n"
            "    version DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1))\n)\n"
            f"ENGINE = ReplacingMergeTree(version)\nORDER BY ({keys})\n"
            f"SETTINGS non_replicated_deduplication_window = 1000\nCOMMENT '{_comment(view)}'",
            f"CREATE MATERIALIZED VIEW IF NOT EXISTS {view.stored}_marked TO materialized_cohorts AS\n"
            f"SELECT '{view.name}' AS view, cohort_digest, version, first_hour, last_hour\n"
            f"FROM {view.stored} WHERE is_marker",
        ):
            client.command(render(text, cluster), settings={"mutations_sync": 2})
        log.info("created table %s", view.stored)
    return [view.name for view in changed]


def create_refreshes(client: Client, days: Mapping[str, int], every_s: int, cluster: str = "") -> None:
    """Create the refresh of each table, or replace it by that of this release.

    Arguments as in `rollup_refresh.create_refreshes`. Refreshes are `LEAST_REFRESH_S` apart, at least.

    Raises:
        ClickHouseError: the store is unavailable, or lacks a table.
    """
    every_s = max(every_s, LEAST_REFRESH_S)
    for number, view in enumerate(found := materialized_views()):
        for text in (
            f"DROP VIEW IF EXISTS {view.name}_refresh SYNC",
            f"CREATE MATERIALIZED VIEW IF NOT EXISTS {view.name}_refresh REFRESH EVERY {every_s} SECOND "
            f"OFFSET {number * every_s // len(found)} SECOND APPEND TO {view.stored} AS\n"
            f"{statement(view, days, cluster)}",
        ):
            client.command(render(text, cluster))


def refresh(client: Client, *, rest_s: int = REST_S) -> None:
    """Store the rows of the cohorts that are due now, once, of facts that are kept for ever.

    Raises:
        ClickHouseError: the store is unavailable, or lacks a table.
    """
    for view in materialized_views():
        client.command(f"INSERT INTO {view.stored} {statement(view, {}, rest_s=rest_s)}")


def begin_to_delete_replaced_rows(client: Client) -> None:
    """Begin to delete the stored rows that have not counted for a day: other versions of their cohorts count, or none.

    Raises:
        ClickHouseError: the store is unavailable; call it again.
    """
    for view in materialized_views():
        current = (
            f"SELECT cohort_digest, version FROM ({view.cohort_versions()}) WHERE version > changed + INTERVAL 1 MINUTE"
        )
        where = f"version < now64(6, 'UTC') - INTERVAL 1 DAY AND (cohort_digest, version) NOT IN ({current})"
        if client.query(f"SELECT count() FROM {view.stored} WHERE {where}").result_rows != [(0,)]:
            client.command(
                f"ALTER TABLE {view.stored} DELETE WHERE {where}", settings={"allow_nondeterministic_mutations": 1}
            )


def _types(view: View) -> dict[str, str]:
    """Return the columns of its table with their types."""
    columns = {column.name: column.type for column in view.columns}
    keys = {name: DIMENSION_TYPES[name] for name in (*COHORT, *view.row_keys) if name not in columns}
    return {"cohort_digest": "UInt128 CODEC(ZSTD(1))", **keys, **columns}


def _comment(view: View) -> str:
    digest = hashlib.sha256(statement(view, {}).encode()).hexdigest()[:16]
    return f"Rows of the view {view.name} by cohort. Definition {digest}."
