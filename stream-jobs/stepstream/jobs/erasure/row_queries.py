"""Query rows by temporary tables, and hide rows. The text of a statement that hides rows holds no person's name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.external import ExternalData

_CHUNK = 5000
"""Names of one statement."""
Pair = tuple[str, str]
"""Tenant and name."""
_MUTATION = {
    "mutations_sync": 2,
    "lightweight_deletes_sync": 2,
    # Replicated tables refuse subqueries, which may differ among replicas. These are of constants.
    "allow_nondeterministic_mutations": 1,
}


Tables = Mapping[str, Iterable[tuple[str, Any]]]
"""Rows of temporary tables by name."""
# One column first: few rows pass it, and only these are compared in full.
PERSONS = "user IN (SELECT name FROM persons) AND (tenant, user) IN (SELECT tenant, name FROM persons)"
ABOUT = "trajectory_id IN (SELECT name FROM about) AND (tenant, trajectory_id) IN (SELECT tenant, name FROM about)"
_STRUCTURES = {"buckets": "tenant String, start UInt32"}
"""Columns of the temporary tables that are not of (tenant, name)."""


def select(client: Client, query: str, **tables: Iterable[tuple[str, Any]]) -> Sequence[Sequence[Any]]:
    """Query with temporary tables, which travel in the body of the request: `buckets`, others of (tenant, name)."""
    external = ExternalData()
    for name, rows in tables.items():
        lines = b"\n".join(map(orjson.dumps, rows))
        structure = _STRUCTURES.get(name, "tenant String, name String")
        external.add_file(file_name=name, data=lines, fmt="JSONCompactEachRow", structure=structure)
    return client.query(query, external_data=external).result_rows


def hide(client: Client, table: str, conditions: Iterable[str], parameters: Mapping[str, Any] | None = None) -> None:
    """Hide the rows for which one of the conditions holds; `parameters` are those of the conditions.

    On return no query finds them.
    """
    for where in conditions:
        client.command(f"DELETE FROM {table} WHERE {where}", parameters=dict(parameters or {}), settings=_MUTATION)


def chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the items in lists for one statement each."""
    iterator = iter(items)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
