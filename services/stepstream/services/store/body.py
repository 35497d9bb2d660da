"""Reads a request's body: unpacks it, finds the statement in it, and leaves an INSERT's data to be streamed."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from stepstream.services.store import statement as sql
from stepstream.services.store.codecs import Unpack
from stepstream.services.store.statement import Kind, Statement

# ClickHouse's max_query_size: a FORMAT clause further down is not looked for.
_LONGEST_HEAD = 256 * 1024


@dataclass
class Body:
    """A statement, and for an INSERT the pieces of its data, not yet read."""

    statement: Statement
    data: AsyncIterator[bytes]


async def read(url_sql: bytes, pieces: AsyncIterator[bytes], encoding: str) -> Body:
    """Reads as much of a body as the statement needs.

    Args:
        url_sql: statement from the URL, or its beginning; may be empty.
        pieces: the body as it comes.
        encoding: its Content-Encoding.

    Raises:
        StoreError: a body that cannot be unpacked, or several statements in it.
    """
    unpacked = _unpacked(pieces, encoding)
    head = url_sql
    if url_sql:
        found = sql.parse(url_sql)
        if found.kind is Kind.INSERT:
            return Body(found, _then(url_sql[found.data_at :], unpacked))
        head += b"\n"
    else:
        async for piece in unpacked:
            head += piece
            if len(head) > _LONGEST_HEAD or not sql.needs_more(head):
                break
        found = sql.parse(head)
        if found.kind is Kind.INSERT:
            return Body(found, _then(head[found.data_at :], unpacked))
    rest = [piece async for piece in unpacked]
    return Body(sql.parse(head + b"".join(rest)), _then(b"", unpacked))


async def _unpacked(pieces: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    unpack = Unpack(encoding)
    async for piece in pieces:
        plain = unpack.feed(piece)
        if plain:
            yield plain
    unpack.finish()


async def _then(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for piece in rest:
        yield piece
