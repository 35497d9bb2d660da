"""Inspect each statement before it runs, with the engine's own parser."""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stepstream.jobs.clickhouse.views import views
from stepstream.services.store import inspection, view_calls
from stepstream.services.store.engine import Connection, literal
from stepstream.services.store.errors import ACCESS_DENIED, BAD_ARGUMENTS, READONLY, StoreError

# Verdicts to keep, of texts up to this length: the sink and the console send the same few statements again and again.
_KEPT = 1024
_LONGEST_KEPT = 16_384
_NOT_JSON = "does not support JSON serialization"
_AI = "categories = 'AI'"


@dataclass(frozen=True)
class Verdict:
    """The result of an inspection."""

    refusal: str | None
    reads_only: bool
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of a SELECT's text."""
    views: frozenset[str] = frozenset()
    """Views that the statement calls, if it has a text without these calls."""
    without_calls: bytes = b""
    """The statement with the definitions of the views."""


class Inspector:
    """Inspects statements on a connection of its own, which no request can configure. Thread-safe; blocks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._definitions = {name: view.sql() for name, view in views().items()}
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()
        connection.execute("SET max_query_size = 67108864")
        self._outside = inspection.outside_functions(
            self._column("SELECT name FROM system.table_functions"),
            self._column("SELECT name FROM system.functions"),
            self._column(
                f"SELECT name FROM system.functions WHERE {_AI}"
                f" OR alias_to IN (SELECT name FROM system.functions WHERE {_AI})"
            ),
        )

    def check(self, sql: bytes, *, reads_only: bool = False) -> Verdict:
        """Check one statement; return its verdict.

        Args:
            sql: the statement; of an INSERT, the part before its data.
            reads_only: refuse statements that change anything.

        Raises:
            StoreError: it is refused, or cannot be parsed.
        """
        text = sql.decode("utf-8", "surrogateescape")
        with self._lock:
            verdict = self._verdicts.get(text) or self._inspect(text)
            if len(text) <= _LONGEST_KEPT:
                self._verdicts[text] = verdict
                self._verdicts.move_to_end(text)
            if len(self._verdicts) > _KEPT:
                self._verdicts.popitem(last=False)
        if verdict.refusal is not None:
            raise StoreError(ACCESS_DENIED, f"Not enough privileges: the store refuses {verdict.refusal}")
        if reads_only and not verdict.reads_only:
            raise StoreError(READONLY, "Cannot execute query in readonly mode: GET may only read, use POST")
        return verdict

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _inspect(self, text: str) -> Verdict:
        try:
            parsed = self._value(f"SELECT parseQueryToJSON({literal(text)})")
        except StoreError as error:
            if error.code != BAD_ARGUMENTS or _NOT_JSON not in error.message:
                raise
            canonical = self._value(f"SELECT formatQuerySingleLine({literal(text)})")
            if inspection.is_description(canonical):
                return Verdict(None, reads_only=True)
            return Verdict(f"statements like {' '.join(canonical.split()[:2])}", reads_only=False)
        try:
            tree = json.loads(parsed)
        except RecursionError:
            return Verdict("statements that nest so deeply", reads_only=False)
        names = frozenset(self._definitions)
        refusal = inspection.refusal(tree, self._outside, names)
        verdict = Verdict(refusal, inspection.reads_only(tree), inspection.settings_of(tree))
        if aliases := view_calls.called_views(tree, names):
            sql = text.encode("utf-8", "surrogateescape")
            if without_calls := view_calls.with_definitions(sql, aliases, self._definitions):
                return replace(verdict, views=frozenset(aliases), without_calls=without_calls)
        return verdict

    def _value(self, sql: str) -> str:
        return self._connection.execute(sql, "TabSeparatedRaw").body.decode("utf-8", "surrogateescape").rstrip("\n")

    def _column(self, sql: str) -> list[str]:
        return self._value(sql).splitlines()
