"""Find a statement's kind, its format, and the start of an INSERT's data. Pure.

This reads only as much SQL as the HTTP protocol needs; the engine parses the statement itself. Keywords count only
outside quotes, comments and brackets.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from stepstream.services.store.errors import SYNTAX_ERROR, StoreError

# Formats whose blocks can be concatenated: they have no header, footer or separator.
STREAMABLE = frozenset(
    {"Native", "TabSeparated", "TSV", "TabSeparatedRaw", "TSVRaw", "CSV", "RowBinary", "JSONEachRow", "NDJSON"}
    | {"JSONLines", "JSONCompactEachRow", "Null"}
)
_LONGEST_KEPT = 16_384
_NO_STREAM = frozenset({"INSERT", "OUTFILE"})
_AFTER_FORMAT = re.compile(rb"[ \t]*(?:\r?\n)?")
TOKEN = re.compile(
    rb"""
    (?P<skip>\s+|--[^\n]*|\#[!\ ][^\n]*|/\*.*?\*/)
    |(?P<quoted>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`\\]|\\.|``)*`)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<open>[(\[{])
    |(?P<close>[)\]}])
    |(?P<end>;)
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class Kind(Enum):
    """The way in which the engine runs a statement."""

    SELECT = "select"
    INSERT = "insert"  # with data after a FORMAT or VALUES clause
    OTHER = "other"


@dataclass(frozen=True)
class Statement:
    """The parts of a statement that the protocol needs.

    `text` of an INSERT has no FORMAT or VALUES clause; `data_at` is where its data starts in the parsed bytes.
    """

    kind: Kind
    text: bytes
    format: str | None = None
    data_at: int = 0

    @property
    def head(self) -> bytes:
        """The statement without data, as the engine can parse it."""
        return self.text + b"\nFORMAT " + (self.format or "").encode() if self.kind is Kind.INSERT else self.text


@dataclass(frozen=True)
class _Word:
    text: str
    start: int
    end: int


def parse(sql: bytes) -> Statement:
    """Parse one statement, which an INSERT's data may follow.

    Raises:
        StoreError: the text has several statements, which ClickHouse rejects over HTTP.
    """
    is_insert = sql[:6].upper() == b"INSERT"
    return _parse(sql) if is_insert or len(sql) > _LONGEST_KEPT else _parse_again(sql)


def _parse(sql: bytes) -> Statement:
    words = _words(sql)
    first = next(words, None)
    keyword = first.text.upper() if first else ""
    if keyword == "INSERT":
        return _insert(sql, words)
    after = _after_end(sql)
    if after is not None:
        raise StoreError(
            SYNTAX_ERROR, f"Syntax error (Multi-statements are not allowed): failed at position {after + 1}"
        )
    rest = list(words)
    selects = keyword in {"SELECT", "WITH"} and not any(word.text.upper() in _NO_STREAM for word in rest)
    return Statement(Kind.SELECT if selects else Kind.OTHER, sql, _trailing_format(rest), len(sql))


# Dashboards and the console send the same few statements again and again.
_parse_again = lru_cache(maxsize=512)(_parse)


def needs_more(head: bytes) -> bool:
    """Return True if a body that begins with `head` may still be an INSERT with data.

    Also True if `head` ends within the FORMAT clause: its name or the line end after it may continue.
    """
    words = _words(head)
    first = next(words, None)
    if first is None or first.end == len(head):
        return True
    if first.text.upper() != "INSERT":
        return False
    clause = _data_clause(words)
    if clause is None:
        return True
    return clause.format is not None and head[_data_start(head, clause.format) :] in {b"", b"\r"}


@dataclass(frozen=True)
class _DataClause:
    """The clause that gives an INSERT's rows: FORMAT, VALUES (itself the format), or SELECT (`format` is None)."""

    start: int
    format: _Word | None


def _insert(sql: bytes, words: Iterator[_Word]) -> Statement:
    clause = _data_clause(words)
    if clause is None or clause.format is None:
        return Statement(Kind.OTHER, sql, None, len(sql))
    text, format = sql[: clause.start].rstrip(), clause.format.text
    name = "Values" if format.upper() == "VALUES" else format
    return Statement(Kind.INSERT, text, name, _data_start(sql, clause.format))


def _data_clause(words: Iterator[_Word]) -> _DataClause | None:
    has_table_name = False  # the table's name may be any word
    for word in words:
        keyword = word.text.upper()
        if not has_table_name:
            has_table_name = keyword not in {"INTO", "TABLE", "FUNCTION"}
        elif keyword in {"SELECT", "WITH"}:
            return _DataClause(word.start, None)
        elif keyword == "VALUES":
            return _DataClause(word.start, word)
        elif keyword == "FORMAT":
            format = next(words, None)
            return None if format is None else _DataClause(word.start, format)
    return None


def _data_start(sql: bytes, format: _Word) -> int:
    gap = _AFTER_FORMAT.match(sql, format.end)
    return gap.end() if gap else format.end


def _trailing_format(words: list[_Word]) -> str | None:
    for at in range(len(words) - 2, -1, -1):
        if words[at].text.upper() == "FORMAT":
            rest = words[at + 2 :]
            return words[at + 1].text if not rest or rest[0].text.upper() == "SETTINGS" else None
    return None


def _words(sql: bytes) -> Iterator[_Word]:
    """Yield words and quoted names outside brackets up to the first semicolon; lazily, because data may follow."""
    depth = 0
    for token in TOKEN.finditer(sql):
        kind = token.lastgroup
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
        elif kind == "end" and depth <= 0:
            return
        elif depth <= 0 and kind in {"word", "quoted"}:
            yield _Word(token[0].decode("utf-8", "replace"), token.start(), token.end())


def _after_end(sql: bytes) -> int | None:
    """Return the start of a second statement; None: there is none."""
    ended = False
    for token in TOKEN.finditer(sql):
        if ended and token.lastgroup not in {"skip", "end"}:
            return token.start()
        ended = ended or token.lastgroup == "end"
    return None
