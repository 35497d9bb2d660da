"""Serve the console's page, its data and its metrics over HTTP."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from stepstream.config import Settings
from stepstream.core.metrics.services import CONSOLE_SNAPSHOTS
from stepstream.services.console.board import Board, Unavailable

STATIC = Path(str(resources.files("stepstream.services.console") / "static"))

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_SNAPSHOTS = CONSOLE_SNAPSHOTS.create()


def build_app(settings: Settings) -> Starlette:
    """Build the application, which also starts without a store."""
    board = Board(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        board.close()

    async def snapshot(request: Request) -> Response:
        try:
            data = await run_in_threadpool(board.snapshot, request.query_params.get("model"))
        except Unavailable as error:
            _SNAPSHOTS.labels("unavailable").inc()
            return _json({"error": str(error)}, 503)
        _SNAPSHOTS.labels("answered").inc()
        now = time.time_ns() // 1_000_000
        return _json({"now": now, "staleness_bound": settings.learner.staleness_bound, **data})

    return Starlette(
        routes=[
            Route("/", _page),
            Route("/health", _health),
            Route("/ready", _health),  # the page itself shows that the store is away
            Route("/metrics", _metrics),
            Route("/api/snapshot", snapshot),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        lifespan=lifespan,
    )


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers=_HEADERS)


async def _health(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _metrics(request: Request) -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, {"Cache-Control": "no-store"}, "application/json")
