"""Create and replace the views of `views/` in ClickHouse."""

import hashlib
import logging

from clickhouse_connect.driver.client import Client

from stepstream.jobs.clickhouse.cluster import render
from stepstream.jobs.clickhouse.views import View, views

log = logging.getLogger(__name__)
_COMMENTS = "SELECT name, comment FROM system.tables WHERE database = currentDatabase() AND engine = 'View'"


def create_views(client: Client, cluster: str = "") -> list[str]:
    """Create the views that are missing, and replace those whose definition differs; return their names.

    The comment of a view is its meaning with a digest of its definition, by which a changed one is found. Repeatable.
    `cluster` as in `cluster.render`.
    """
    comments = {str(name): str(comment) for name, comment in client.query(_COMMENTS).result_rows}
    changed = [view for view in views().values() if comments.get(view.name) != comment_of(view)]
    for view in changed:
        text = comment_of(view).replace("\\", "\\\\").replace("'", "\\'")
        client.command(render(f"CREATE OR REPLACE VIEW {view.name} AS {view.sql()}\nCOMMENT '{text}'", cluster))
        log.info("created view %s", view.name)
    return [view.name for view in changed]


def comment_of(view: View) -> str:
    """Return the comment of a view in the database: its meaning, and a digest of its definition."""
    digest = hashlib.sha256(view.sql().encode()).hexdigest()[:16]
    return f"{view.meaning} Definition {digest}."
