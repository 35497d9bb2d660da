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


def select(client: Client, query: str, **tables: Iterable[Pair]) -> Sequence[Sequence[Any]]:
    """Query with temporary tables of (tenant, name), which travel in the body of the request."""
    external = ExternalData()
    for name, pairs in tables.items():
        lines = b"\n".join(map(orjson.dumps, pairs))
        external.add_file(file_name=name, data=lines, fmt="JSONCompactEachRow", structure="tenant String, name String")
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
