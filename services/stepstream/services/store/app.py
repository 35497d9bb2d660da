"""Serve queries at `/`, and `/ping`, `/replicas_status`, `/ready` and `/metrics`."""

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from stepstream.services.store import body, metrics, replies
from stepstream.services.store.errors import BAD_ARGUMENTS, StoreError
from stepstream.services.store.request import Account, authenticate, read_request
from stepstream.services.store.run import ExternalTable, Runner
from stepstream.services.store.statement import Kind

logger = logging.getLogger(__name__)


def build_app(runner: Runner, accounts: Sequence[Account]) -> Starlette:
    """Build the application for these accounts; it closes `runner` when it shuts down."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        runner.close()

    async def query(http: HttpRequest) -> Response:
        if http.method == "GET" and not http.query_params.get("query"):
            return PlainTextResponse("Ok.\n")
        query_id = http.query_params.get("query_id", "")
        try:
            return await _query(runner, http, authenticate(http.query_params, http.headers, accounts))
        except StoreError as error:
            logger.warning("query %s failed: code %d", query_id, error.code)
            return replies.error_reply(error, query_id)
        except ClientDisconnect:
            logger.warning("query %s: the client closed the connection before its body's end", query_id)
            return Response(status_code=400)

    async def ready(http: HttpRequest) -> Response:
        try:
            await runner.check()
        except StoreError as error:
            return PlainTextResponse(f"the engine runs no queries: {error}\n", 503)
        return PlainTextResponse("Ok.\n")

    async def serve_metrics(http: HttpRequest) -> Response:
        metrics.SESSIONS.set(len(runner.sessions))
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/", query, methods=["GET", "POST"]),
            Route("/ping", _ok),
            Route("/replicas_status", _ok),
            Route("/ready", ready),
            Route("/metrics", serve_metrics),
        ],
        lifespan=lifespan,
    )


async def _ok(http: HttpRequest) -> Response:
    return PlainTextResponse("Ok.\n")


async def _query(runner: Runner, http: HttpRequest, account: Account) -> Response:
    params: Mapping[str, str] = http.query_params
    pieces: AsyncIterator[bytes] = http.stream()
    externals: list[ExternalTable] = []
    if http.headers.get("content-type", "").startswith("multipart/form-data"):
        params, externals = await _form(http)
        pieces = _empty_body()
    request = replace(read_request(params, http.headers), reads_only=account.reads_only, is_get=http.method == "GET")
    body_read = await body.read_body(request.sql, pieces, request.content_encoding)
    statement = body_read.statement
    start = time.perf_counter()
    kind = statement.kind.value
    try:
        with metrics.RUNNING.track_inprogress():
            answer = await runner.run(request, statement, body_read.data, externals)
    except BaseException:
        metrics.QUERIES.labels(kind, "failed").inc()
        raise
    metrics.QUERIES.labels(kind, "done").inc()
    metrics.SECONDS.labels(kind).observe(time.perf_counter() - start)
    if statement.kind is Kind.INSERT:
        metrics.ROWS.inc(answer.result.written_rows)
    return replies.reply(request, answer, runner.engine.timezone)


async def _empty_body() -> AsyncIterator[bytes]:
    yield b""


async def _form(http: HttpRequest) -> tuple[dict[str, str], list[ExternalTable]]:
    """Return the parameters (also the URL's) and external tables of a multipart request."""
    params = dict(http.query_params)
    files: list[tuple[str, bytes]] = []
    async with http.form(max_part_size=1 << 30) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                files.append((name, await value.read()))
            else:
                params[name] = value
    externals = []
    for name, data in files:
        structure = params.pop(f"{name}_structure", None)
        types = params.pop(f"{name}_types", None)
        if structure is None and types is not None:
            structure = ", ".join(f"_{at} {kind}" for at, kind in enumerate(types.split(","), 1))
        if structure is None:
            raise StoreError(BAD_ARGUMENTS, f"external table {name} needs {name}_structure or {name}_types")
        externals.append(ExternalTable(name, structure, params.pop(f"{name}_format", "TabSeparated"), data))
    return params, externals
