"""Serve the console over HTTP: its page, the endpoints of `api/`, the event stream and the metrics."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from stepstream.config import Settings
from stepstream.config.secrets import console_session_key
from stepstream.core.metrics.services import CONSOLE_ANSWERS
from stepstream.services.console.access.audit import run_action
from stepstream.services.console.access.gate import Gate, Refused
from stepstream.services.console.access.login import session_routes
from stepstream.services.console.access.oidc import OidcClient
from stepstream.services.console.access.oidc_login import oidc_routes, redirect_uri
from stepstream.services.console.api import ENDPOINTS
from stepstream.services.console.decision_cache import DecisionCache
from stepstream.services.console.endpoints import Answer, BadRequest, Call, Endpoint, Services
from stepstream.services.console.event_log import EventLog, LogUnavailable
from stepstream.services.console.headers import SecurityHeaders
from stepstream.services.console.json_http import json_body, json_response
from stepstream.services.console.live import Changes
from stepstream.services.console.store import QueryFailed, Store, Unavailable
from stepstream.topics.catalogue import CONSOLE_USERS
from stepstream.topics.table import Table

STATIC = Path(str(resources.files("stepstream.services.console") / "static"))

_ANSWERS = CONSOLE_ANSWERS.create()


def build_app(settings: Settings) -> Any:
    """Build the application, which also starts without a store and without Kafka."""
    store = Store(settings)
    services = Services(settings, store, EventLog(settings), DecisionCache(settings))
    users = Table(settings, CONSOLE_USERS) if settings.console.login else None
    gate = Gate(settings, lambda: users.items() if users is not None and users.current else None)
    changes = Changes(store)
    config = settings.console
    oidc = OidcClient(config, redirect_uri(config), console_session_key(settings)) if config.oidc_issuer else None

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        changes.close()
        store.close()
        services.log.close()
        if users is not None:
            users.close()

    async def events(request: Request) -> Response:
        if gate.user_of(request) is None:
            return json_response({"error": "log in first"}, 401)
        return StreamingResponse(
            changes.events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    return SecurityHeaders(
        Starlette(
            routes=[
                Route("/health", _health),
                Route("/ready", _health),  # the page itself shows that the store is away
                Route("/metrics", _metrics),
                *session_routes(gate, services.log, provider=urlsplit(config.oidc_issuer).netloc),
                *(oidc_routes(gate, oidc, services.log) if oidc is not None else ()),
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
            call = Call(user, services, dict(request.query_params), await _body(request, endpoint))
            value = await run_in_threadpool(_run, endpoint, call)
            response, outcome = json_response({"now": time.time_ns() // 1_000_000, **value}), "answered"
        except Refused as error:
            response, outcome = json_response({"error": str(error)}, error.status), "refused"
        except BadRequest as error:
            response, outcome = json_response({"error": str(error)}, 400), "bad_request"
        except (Unavailable, LogUnavailable) as error:
            response, outcome = json_response({"error": str(error)}, 503), "unavailable"
        except QueryFailed as error:
            response, outcome = json_response({"error": str(error)}, 500), "failed"
        _ANSWERS.labels(endpoint.path, outcome).inc()
        return response

    return Route(endpoint.path, answer, methods=["GET"] if endpoint.read else ["POST"])


def _run(endpoint: Endpoint, call: Call) -> Answer:
    if endpoint.read is not None:
        return endpoint.read(call)
    return run_action(endpoint, call)


async def _body(request: Request, endpoint: Endpoint) -> dict[str, Any]:
    return await json_body(request) if endpoint.act is not None else {}


async def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _health(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _metrics(request: Request) -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
