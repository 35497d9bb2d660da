"""Serve the console over HTTP: its page, the endpoints of `api/`, the event stream and the metrics."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from stepstream.config import Settings
from stepstream.core.metrics.services import CONSOLE_ANSWERS
from stepstream.services.console.access.gate import Gate, Refused
from stepstream.services.console.api import ENDPOINTS
from stepstream.services.console.endpoints import BadRequest, Call, Endpoint, Services
from stepstream.services.console.headers import SecurityHeaders
from stepstream.services.console.live import Changes
from stepstream.services.console.store import Store, Unavailable

STATIC = Path(str(resources.files("stepstream.services.console") / "static"))

_ANSWERS = CONSOLE_ANSWERS.create()


def build_app(settings: Settings) -> Any:
    """Build the application, which also starts without a store and without Kafka."""
    store = Store(settings)
    services = Services(settings, store)
    gate = Gate()
    changes = Changes(store)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        changes.close()
        store.close()

    async def session(request: Request) -> Response:
        user = gate.user_of(request)
        if user is None:
            return _json({"user": None})
        return _json({"user": {"name": user.name, "role": user.role, "tenant": user.tenant}})

    async def events(request: Request) -> Response:
        if gate.user_of(request) is None:
            return _json({"error": "log in first"}, 401)
        return StreamingResponse(
            changes.events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    return SecurityHeaders(
        Starlette(
            routes=[
                Route("/health", _health),
                Route("/ready", _health),  # the page itself shows that the store is away
                Route("/metrics", _metrics),
                Route("/api/session", session),
                Route("/api/events", events),
                *(_route(endpoint, services, gate) for endpoint in ENDPOINTS),
                Mount("/static", StaticFiles(directory=STATIC)),
                Route("/", _page),
                Route("/{page:str}", _page),
            ],
            lifespan=lifespan,
        )
    )


def _route(endpoint: Endpoint, services: Services, gate: Gate) -> Route:
    async def answer(request: Request) -> Response:
        try:
            user = gate.admit(request, endpoint)
            response = await _answer(endpoint, request, Call(user, services, dict(request.query_params)))
            outcome = "answered"
        except Refused as error:
            response, outcome = _json({"error": str(error)}, error.status), "refused"
        except BadRequest as error:
            response, outcome = _json({"error": str(error)}, 400), "bad_request"
        except Unavailable as error:
            response, outcome = _json({"error": f"Store unreachable: {error}"}, 503), "unavailable"
        _ANSWERS.labels(endpoint.path, outcome).inc()
        return response

    handler: Callable[[Request], Awaitable[Response]] = answer
    return Route(endpoint.path, handler, methods=["GET"] if endpoint.read else ["POST"])


async def _answer(endpoint: Endpoint, request: Request, call: Call) -> Response:
    assert endpoint.read is not None
    value = await run_in_threadpool(endpoint.read, call)
    return _json({"now": time.time_ns() // 1_000_000, **value})


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _health(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _metrics(request: Request) -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, {"Cache-Control": "no-store"}, "application/json")
