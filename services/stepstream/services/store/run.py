"""Run one request's statement on a new connection or its session's, with blocking calls on threads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from stepstream.services.store.engine import Connection, Engine, Insert, Result, Stream, configured, identifier
from stepstream.services.store.inspector import Inspector
from stepstream.services.store.request import Request
from stepstream.services.store.sessions import Sessions
from stepstream.services.store.statement import STREAMABLE, Kind, Statement

# Threads that call the engine, which itself parallelises a query.
THREADS = 8
# Bytes of an INSERT that are buffered before each call of the engine.
_APPEND = 1 << 20
DEFAULT_FORMAT = "TabSeparated"

T = TypeVar("T")


@dataclass(frozen=True)
class ExternalTable:
    """A temporary table that comes with a query and exists as long as it."""

    name: str
    structure: str
    format: str
    data: bytes


@dataclass
class Answer:
    """A query's result: complete in `result`, or its first block there and the others in `more`."""

    format: str
    result: Result
    more: AsyncIterator[bytes] | None = None


@dataclass
class Runner:
    """Runs requests on the engine, in sessions or separately."""

    engine: Engine
    sessions: Sessions = field(init=False)
    _inspector: Inspector = field(init=False)
    _threads: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(lambda reads_only: self.engine.connect(reads_only=reads_only))
        self._inspector = Inspector(self.engine.connect())
        self._threads = ThreadPoolExecutor(THREADS, "query")

    async def run(
        self, request: Request, statement: Statement, data: AsyncIterator[bytes], externals: list[ExternalTable]
    ) -> Answer:
        """Run a statement; on return an INSERT's rows are stored.

        Raises:
            StoreError: an error of the engine, an unusable session, or a statement that is refused.
        """
        await self._call(partial(self._inspector.check, statement.head, reads_only=request.is_get))
        if statement.kind is Kind.INSERT:
            return await self._insert(request, statement, data)
        format = statement.format or request.format or DEFAULT_FORMAT
        if statement.kind is Kind.SELECT and format in STREAMABLE and not request.wait_for_end:
            return await self._select(request, statement, format, externals)
        return Answer(format, await self._call(partial(self._execute, request, statement, format, externals)))

    async def check(self) -> None:
        """Run a query without data.

        Raises:
            StoreError: the engine cannot.
        """

        def query() -> None:
            with closing(self.engine.connect(reads_only=True)) as connection:
                connection.execute("SELECT 1")

        await self._call(query)

    def close(self) -> None:
        """Close sessions, threads and the engine; no request may be running."""
        self._threads.shutdown()
        self.sessions.close()
        self._inspector.close()
        self.engine.close()

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _execute(self, request: Request, statement: Statement, format: str, externals: list[ExternalTable]) -> Result:
        with self._connection(request, externals) as connection:
            return connection.execute(statement.text, format, request.parameters)

    async def _insert(self, request: Request, statement: Statement, data: AsyncIterator[bytes]) -> Answer:
        stack = ExitStack()

        def start() -> Insert:
            connection = stack.enter_context(self._connection(request, []))
            return stack.enter_context(closing(connection.insert(statement.text, statement.format or "")))

        try:
            insert = await self._call(start)
            async for piece in _in_larger_pieces(data):
                await self._call(partial(insert.append, piece))
            result = await self._call(insert.finish)
        finally:
            await self._call(stack.close)
        return Answer(DEFAULT_FORMAT, result)

    async def _select(
        self, request: Request, statement: Statement, format: str, externals: list[ExternalTable]
    ) -> Answer:
        stack = ExitStack()

        def start() -> tuple[Stream, bytes | None, bytes | None]:
            connection = stack.enter_context(self._connection(request, externals))
            stream = connection.stream(statement.text, format, request.parameters)
            stack.callback(stream.close)
            first = stream.next()
            return stream, first, None if first is None else stream.next()

        async def more(stream: Stream, block: bytes | None) -> AsyncIterator[bytes]:
            try:
                while block is not None:
                    yield block
                    block = await self._call(stream.next)
            finally:
                # Release the session before the reply ends: the client may use it again at once.
                await self._call(stack.close)

        try:
            stream, first, second = await self._call(start)
        except BaseException:
            await self._call(stack.close)
            raise
        if second is None:
            await self._call(stack.close)
            return Answer(format, Result(first or b""))
        return Answer(format, Result(first or b""), more(stream, second))

    @contextmanager
    def _connection(self, request: Request, externals: list[ExternalTable]) -> Iterator[Connection]:
        with ExitStack() as stack:
            if request.session:
                connection = stack.enter_context(self.sessions.use(request.session, reads_only=request.reads_only))
            else:
                reads_only = request.reads_only or request.is_get
                connection = stack.enter_context(closing(self.engine.connect(reads_only=reads_only)))
            stack.enter_context(configured(connection, request, restore=request.session is not None))
            for table in externals:
                create = f"CREATE TEMPORARY TABLE {identifier(table.name)} ({table.structure})"
                self._inspector.check(create.encode())
                connection.execute(create)
                stack.callback(connection.execute, f"DROP TEMPORARY TABLE {identifier(table.name)}")
                insert = connection.insert(f"INSERT INTO {identifier(table.name)}".encode(), table.format)
                with closing(insert):
                    insert.append(table.data)
                    insert.finish()
            yield connection


async def _in_larger_pieces(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join small pieces, so that not every packet calls the engine."""
    buffer: list[bytes] = []
    size = 0
    async for piece in pieces:
        buffer.append(piece)
        size += len(piece)
        if size >= _APPEND:
            yield b"".join(buffer)
            buffer, size = [], 0
    if buffer:
        yield b"".join(buffer)
