"""Read a request's body: decompress it, parse its statement, and stream an INSERT's data."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from stepstream.services.store import statement as sql
from stepstream.services.store.codecs import Unpack
from stepstream.services.store.statement import Kind, Statement

# ClickHouse's max_query_size: a later FORMAT clause is ignored.
_MAX_HEAD_BYTES = 256 * 1024


@dataclass
class Body:
    """A statement, and the unread pieces of an INSERT's data."""

    statement: Statement
    data: AsyncIterator[bytes]


async def read_body(url_sql: bytes, pieces: AsyncIterator[bytes], encoding: str) -> Body:
    """Read as much of a body as its statement needs.

    Args:
        url_sql: statement from the URL, or its beginning; may be empty.
        pieces: the body's pieces as they arrive.
        encoding: its Content-Encoding.

    Raises:
        StoreError: the body cannot be decompressed, or has several statements.
    """
    unpacked = _unpacked(pieces, encoding)
    head = url_sql
    if url_sql:
        statement = sql.parse(url_sql)
        if statement.kind is Kind.INSERT:
            return Body(statement, _chain(url_sql[statement.data_at :], unpacked))
        head += b"\n"
    else:
        async for piece in unpacked:
            head += piece
            if len(head) > _MAX_HEAD_BYTES or not sql.needs_more(head):
                break
        statement = sql.parse(head)
        if statement.kind is Kind.INSERT:
            return Body(statement, _chain(head[statement.data_at :], unpacked))
    rest = b"".join([piece async for piece in unpacked])
    return Body(sql.parse(head + rest) if rest else statement, _chain(b"", unpacked))


async def _unpacked(pieces: AsyncIterator[bytes], encoding: str) -> AsyncIterator[bytes]:
    unpack = Unpack(encoding)
    async for piece in pieces:
        plain = unpack.feed(piece)
        if plain:
            yield plain
    unpack.finish()


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for piece in rest:
        yield piece
