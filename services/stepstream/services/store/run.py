"""Run one request's statement on an idle connection or its session's, with blocking calls on threads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from stepstream.services.store.answer_cache import AnswerCache, Question, Recording, ttl_of
from stepstream.services.store.current_views import CurrentViews
from stepstream.services.store.engine import (
    Connection,
    Engine,
    Insert,
    Result,
    Stream,
    configure,
    configured,
    identifier,
)
from stepstream.services.store.errors import StoreError
from stepstream.services.store.idle_connections import Configuration, IdleConnections, Lease
from stepstream.services.store.inspector import Inspector, Verdict
from stepstream.services.store.request import Request
from stepstream.services.store.sessions import Sessions
from stepstream.services.store.statement import STREAMABLE, Kind, Statement
from stepstream.services.store.view_calls import TEXT_SETTINGS

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
class _Rest:
    """A SELECT whose first block has arrived."""

    lease: Lease
    stream: Stream
    recording: Recording | None
    is_clean: bool
    """True: at its end, the connection is as before."""
    block: bytes | None = None
    """The next block; None: the end."""

    def next(self) -> bytes | None:
        """Fetch a block; at the end, give the connection back and keep the answer."""
        block = self.stream.next()
        if block is None:
            self.lease.is_clean = self.is_clean
            if self.recording is not None:
                self.recording.end()
        elif self.recording is not None:
            self.recording.add(block)
        return block


@dataclass
class Runner:
    """Runs requests on the engine, in sessions or separately."""

    engine: Engine
    sessions: Sessions = field(init=False)
    _idle: IdleConnections = field(init=False)
    _answers: AnswerCache = field(default_factory=AnswerCache, init=False)
    _current_views: CurrentViews = field(init=False)
    _inspector: Inspector = field(init=False)
    _threads: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(lambda reads_only: self.engine.connect(reads_only=reads_only))
        self._idle = IdleConnections(self._connect)
        self._inspector = Inspector(self.engine.connect())
        self._current_views = CurrentViews(self.engine.connect())
        self._threads = ThreadPoolExecutor(THREADS, "query")

    async def run(
        self, request: Request, statement: Statement, data: AsyncIterator[bytes], externals: list[ExternalTable]
    ) -> Answer:
        """Run a statement; on return an INSERT's rows are stored.

        Raises:
            StoreError: an error of the engine, an unusable session, or a statement that is refused.
        """
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
        self._idle.clear()
        self._inspector.close()
        self._current_views.close()
        self.engine.close()

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _execute(self, request: Request, statement: Statement, format: str, externals: list[ExternalTable]) -> Result:
        verdict = self._inspector.check(statement.head, reads_only=request.is_get)
        kept, recording = self._kept(request, statement, verdict, format, externals)
        if kept is not None:
            return Result(kept)
        text = self._text(request, statement, verdict, externals)
        try:
            with self._lease(request, externals) as lease:
                result = lease.connection.execute(text, format, request.parameters)
                lease.is_clean = statement.kind is Kind.SELECT and not externals
        finally:
            if not verdict.reads_only:  # also a statement that fails may have had an effect
                self._idle.clear()  # it may have dropped their database
                self._answers.clear()
                self._current_views.clear()
        if recording is not None:
            recording.add(result.body)
            recording.end()
        return result

    async def _insert(self, request: Request, statement: Statement, data: AsyncIterator[bytes]) -> Answer:
        stack = ExitStack()

        def start() -> tuple[Lease, Insert]:
            self._inspector.check(statement.head, reads_only=request.is_get)
            lease = stack.enter_context(self._lease(request, []))
            return lease, stack.enter_context(closing(lease.connection.insert(statement.text, statement.format or "")))

        try:
            lease, insert = await self._call(start)
            async for piece in _in_larger_pieces(data):
                await self._call(partial(insert.append, piece))
            result = await self._call(insert.finish)
            lease.is_clean = True
        finally:
            await self._call(stack.close)
        return Answer(DEFAULT_FORMAT, result)

    async def _select(
        self, request: Request, statement: Statement, format: str, externals: list[ExternalTable]
    ) -> Answer:
        stack = ExitStack()

        def start() -> tuple[bytes, _Rest | None]:
            verdict = self._inspector.check(statement.head, reads_only=request.is_get)
            kept, recording = self._kept(request, statement, verdict, format, externals)
            if kept is not None:
                return kept, None
            text = self._text(request, statement, verdict, externals)
            lease = stack.enter_context(self._lease(request, externals))
            stream = lease.connection.stream(text, format, request.parameters)
            stack.callback(stream.close)
            rest = _Rest(lease, stream, recording, is_clean=not externals)
            first = rest.next()
            rest.block = None if first is None else rest.next()
            if rest.block is None:
                stack.close()
            return first or b"", None if rest.block is None else rest

        async def more(rest: _Rest) -> AsyncIterator[bytes]:
            try:
                while rest.block is not None:
                    yield rest.block
                    rest.block = await self._call(rest.next)
            finally:
                # Release the session before the reply ends: the client may use it again at once.
                await self._call(stack.close)

        try:
            first, rest = await self._call(start)
        except BaseException:
            await self._call(stack.close)
            raise
        return Answer(format, Result(first), None if rest is None else more(rest))

    def _text(self, request: Request, statement: Statement, verdict: Verdict, externals: list[ExternalTable]) -> bytes:
        """Return the text to run: that of a SELECT has the definitions of its views.

        A session and external tables may bring tables with the names of those that the definitions read.
        """
        if not verdict.views or statement.kind is not Kind.SELECT or request.session or externals:
            return statement.text
        if not TEXT_SETTINGS.isdisjoint(request.settings):
            return statement.text
        database = request.database or self.engine.database
        return verdict.without_calls if verdict.views <= self._current_views.of(database) else statement.text

    def _kept(
        self, request: Request, statement: Statement, verdict: Verdict, format: str, externals: list[ExternalTable]
    ) -> tuple[bytes | None, Recording | None]:
        """Return the kept answer to a SELECT that asks for it; otherwise the recording of its answer, or neither."""
        if statement.kind is not Kind.SELECT or request.session or externals:
            return None, None
        if not (ttl_s := ttl_of(request.settings, verdict.settings)):
            return None, None
        question = Question(
            request.reads_only,
            request.database,
            tuple(sorted(request.settings.items())),
            tuple(sorted(request.parameters.items())),
            format,
            statement.text,
        )
        answer = self._answers.get(question)
        return answer, None if answer is not None else self._answers.record(question, ttl_s)

    @contextmanager
    def _lease(self, request: Request, externals: list[ExternalTable]) -> Iterator[Lease]:
        """Yield a connection with the request's settings and external tables."""
        with ExitStack() as stack:
            if request.session:
                connection = stack.enter_context(self.sessions.use(request.session, reads_only=request.reads_only))
                stack.enter_context(configured(connection, request))
                lease = Lease(connection)
            else:
                reads_only = request.reads_only or request.is_get
                configuration = Configuration(reads_only, request.database, tuple(sorted(request.settings.items())))
                lease = stack.enter_context(self._idle.use(configuration))
            for table in externals:
                create = f"CREATE TEMPORARY TABLE {identifier(table.name)} ({table.structure})"
                self._inspector.check(create.encode())
                lease.connection.execute(create)
                stack.callback(lease.connection.execute, f"DROP TEMPORARY TABLE {identifier(table.name)}")
                insert = lease.connection.insert(f"INSERT INTO {identifier(table.name)}".encode(), table.format)
                with closing(insert):
                    insert.append(table.data)
                    insert.finish()
            yield lease

    def _connect(self, configuration: Configuration) -> Connection:
        connection = self.engine.connect(reads_only=configuration.reads_only)
        try:
            configure(connection, configuration.database, configuration.settings)
        except StoreError:
            connection.close()
            raise
        return connection


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
