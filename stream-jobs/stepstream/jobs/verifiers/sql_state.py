"""The verifier `sql_state`: the agent's statements produce the expected state of a database (SQLite, in memory).

The file of expected values has `setup` (statements that create the initial database) and either `gold` (statements that
do the task) or `state` (tables with their rows). The rows of every table are compared, in any order, numbers by value.
The declaration of a table and the order of its rows do not count.
"""

import math
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Literal

from pydantic import Field

from stepstream.jobs.verifiers.base import Case, Source, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.options import Options, VerifierContext, expected_value, parse_options

_STEPS_PER_CLOCK_CHECK = 50
"""Instructions of SQLite between two looks at the clock: a single one may read a large value many times."""
_PATTERN_BYTES = 500
_DENIED = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
    sqlite3.SQLITE_CREATE_VTABLE,
    sqlite3.SQLITE_DROP_VTABLE,
}
_DENIED_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}

State = dict[str, Counter[tuple[Any, ...]]]
"""Rows of each table, by name in lower case."""


class SqlStateOptions(Options):
    """Options of `sql_state`."""

    seconds: float = Field(2.0, gt=0)
    """Time limit of the agent's statements."""
    memory_mb: int = Field(64, ge=1)
    """Largest database; temporary tables may have the same size again."""
    value_bytes: int = Field(100_000, ge=1_000)
    """Longest value that the agent's statements may make or read, and limit of their total length. The time of one SQL
    function, which cannot be interrupted, grows with its square.
    """
    pays: Literal["all", "share"] = "all"
    """`all`: 1 for the expected state, else 0; `share`: share of right tables among those that had to change or are
    wrong.
    """
    ignore: tuple[str, ...] = ()
    """Tables that do not count."""


class SqlState:
    """Runs statements and compares states."""

    source: Source = "verifier"
    reads_trajectory = False

    def __init__(self, options: SqlStateOptions) -> None:
        self._options = options

    def verify(self, case: Case) -> Sequence[Verdict]:
        """Return 1 for the expected state; 0 if the statements fail or exceed a limit."""
        setup = expected_value(case.expected.get("setup", ""), str, "setup")
        wanted = self._wanted(case, setup)
        try:
            found = self._after(setup, case.observed)
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            # The message may hold what the agent wrote.
            interrupted = "interrupted" in str(error)
            return [Verdict(0.0, "timeout" if interrupted else "failed", type(error).__name__)]
        ignored = {name.lower() for name in self._options.ignore}
        names = sorted((wanted.keys() | found.keys()) - ignored)
        wrong = [name for name in names if wanted.get(name) != found.get(name)]
        if not wrong:
            return [Verdict(1.0, "equal")]
        paid = 0.0
        if self._options.pays == "share":
            before = self._after(setup, "")  # a table that was right from the start earns nothing
            changed = [name for name in names if wanted.get(name) != before.get(name)]
            paid = 1 - len(wrong) / len({*changed, *wrong})
        return [Verdict(paid, "different", f"{len(wrong)} of {len(names)} tables differ")]

    def _wanted(self, case: Case, setup: str) -> State:
        state = case.expected.get("state")
        try:
            if state is None:
                return self._after(setup, expected_value(case.expected.get("gold"), str, "gold"))
            return {name.lower(): Counter(tuple(map(normalize, row)) for row in rows) for name, rows in state.items()}
        except (sqlite3.Error, AttributeError, TypeError) as error:
            raise UnverifiableCase(f"the task's setup, gold or state cannot be used: {type(error).__name__}") from None

    def _after(self, setup: str, statements: str) -> State:
        with closing(sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)) as database:
            for kind in ("main", "temp"):
                database.execute(f"PRAGMA {kind}.max_page_count = {self._options.memory_mb * 256}")
            database.execute("PRAGMA trusted_schema = OFF")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._options.memory_mb << 20)
            database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            database.executescript(setup)
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._options.value_bytes)
            database.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _PATTERN_BYTES)
            until = time.monotonic() + self._options.seconds
            database.set_progress_handler(lambda: time.monotonic() > until, _STEPS_PER_CLOCK_CHECK)
            database.set_authorizer(_authorize)
            database.executescript(statements)
            if database.in_transaction:
                database.execute("ROLLBACK")  # uncommitted changes do not count
            database.set_authorizer(None)
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._options.memory_mb << 20)
            return state_of(database)


def state_of(database: sqlite3.Connection) -> State:
    """Return the rows of every table."""
    names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB 'sqlite_*'")
    return {
        name.lower(): Counter(
            tuple(map(normalize, row)) for row in database.execute('SELECT * FROM "' + name.replace('"', '""') + '"')
        )
        for (name,) in names.fetchall()
    }


def normalize(value: Any) -> Any:
    """Normalise a value for comparison: numbers by value (1 is 1.0, and true), to nine digits."""
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        rounded = float(f"{value:.9g}")
        return int(rounded) if rounded.is_integer() else rounded
    return bytes(value) if isinstance(value, bytes | bytearray) else value


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _source: str | None) -> int:
    if action in _DENIED or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _DENIED_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def make(options: Mapping[str, Any], context: VerifierContext) -> SqlState:
    """Create the verifier from its options."""
    return SqlState(parse_options(SqlStateOptions, options))
