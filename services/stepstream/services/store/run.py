"""Runs one request's statement on a connection of its own or of its session. Blocking parts go to threads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from stepstream.services.store.engine import Connection, Engine, Insert, Result, Stream, identifier, prepared
from stepstream.services.store.request import Request
from stepstream.services.store.sessions import Sessions
from stepstream.services.store.statement import STREAMABLE, Kind, Statement

# Threads that the engine is called from; it parallelises a query by itself.
THREADS = 8
# Bytes of an INSERT gathered before the engine is given them.
_APPEND = 1 << 20
DEFAULT_FORMAT = "TabSeparated"

T = TypeVar("T")


@dataclass(frozen=True)
class External:
    """A table that comes with a query and lives as long as it."""

    name: str
    structure: str
    format: str
    data: bytes


@dataclass
class Answer:
    """A query's result: complete (`result`), or its first blocks with more to come (`more`)."""

    format: str
    result: Result
    more: AsyncIterator[bytes] | None = None


@dataclass
class Runner:
    """Runs requests on the engine."""

    engine: Engine
    sessions: Sessions = field(init=False)
    _threads: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.engine.connect)
        self._threads = ThreadPoolExecutor(THREADS, "query")

    async def run(
        self, request: Request, statement: Statement, data: AsyncIterator[bytes], externals: list[External]
    ) -> Answer:
        """Runs a statement; an INSERT's rows are stored when this returns.

        Raises:
            StoreError: whatever the engine says, or a session that cannot be used.
        """
        if statement.kind is Kind.INSERT:
            return await self._insert(request, statement, data)
        format = statement.format or request.format or DEFAULT_FORMAT
        if statement.kind is Kind.SELECT and format in STREAMABLE and not request.whole:
            return await self._select(request, statement, format, externals)
        return Answer(format, await self._call(partial(self._execute, request, statement, format, externals)))

    def close(self) -> None:
        """Closes sessions, threads and the engine; no request may be running."""
        self._threads.shutdown()
        self.sessions.close()
        self.engine.close()

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _execute(self, request: Request, statement: Statement, format: str, externals: list[External]) -> Result:
        with self._connection(request, externals) as connection:
            return connection.execute(statement.text, format, request.parameters)

    async def _insert(self, request: Request, statement: Statement, data: AsyncIterator[bytes]) -> Answer:
        stack = ExitStack()

        def start() -> Insert:
            connection = stack.enter_context(self._connection(request, []))
            return stack.enter_context(closing(connection.insert(statement.text, statement.format or "")))

        try:
            insert = await self._call(start)
            async for piece in _gathered(data):
                await self._call(partial(insert.append, piece))
            result = await self._call(insert.finish)
        finally:
            await self._call(stack.close)
        return Answer(DEFAULT_FORMAT, result)

    async def _select(self, request: Request, statement: Statement, format: str, externals: list[External]) -> Answer:
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
                # Before the reply's end is sent: the client may use the session again at once.
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
    def _connection(self, request: Request, externals: list[External]) -> Iterator[Connection]:
        with ExitStack() as stack:
            if request.session:
                connection = stack.enter_context(self.sessions.use(request.session))
            else:
                connection = stack.enter_context(closing(self.engine.connect()))
            stack.enter_context(prepared(connection, request, restore=request.session is not None))
            for table in externals:
                connection.execute(f"CREATE TEMPORARY TABLE {identifier(table.name)} ({table.structure})")
                stack.callback(connection.execute, f"DROP TEMPORARY TABLE {identifier(table.name)}")
                insert = connection.insert(f"INSERT INTO {identifier(table.name)}".encode(), table.format)
                with closing(insert):
                    insert.append(table.data)
                    insert.finish()
            yield connection


async def _gathered(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Larger pieces, so that the engine is not called for each packet."""
    held: list[bytes] = []
    size = 0
    async for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _APPEND:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
