"""Answer who is logged in; log people in and out."""

import logging

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepstream.services.console.access.audit import Audit
from stepstream.services.console.access.gate import Gate, Refused
from stepstream.services.console.endpoints import BadRequest
from stepstream.services.console.event_log import EventLog
from stepstream.services.console.json_http import json_body, json_response

log = logging.getLogger(__name__)

_LONGEST_NAME = 100


def session_routes(gate: Gate, event_log: EventLog, *, provider: str) -> list[Route]:
    """Return the routes of the session; `provider` is the host of the OpenID Connect provider, empty without one."""

    async def session(request: Request) -> Response:
        user = gate.user_of(request)
        shown = user and {"name": user.name, "role": user.role, "tenant": user.tenant}
        answer = {"user": shown, "csrf": gate.token_of(request), "login": gate.requires_login, "provider": provider}
        return json_response(answer)

    async def log_in(request: Request) -> Response:
        try:
            gate.check_token(request)
            body = await json_body(request)
            name, password = body.get("name"), body.get("password")
            if not isinstance(name, str) or not isinstance(password, str) or len(name) > _LONGEST_NAME:
                raise BadRequest("send name and password")
            cookie = await run_in_threadpool(_log_in, gate, event_log, name, password)
        except Refused as error:
            return json_response({"error": str(error)}, error.status)
        except BadRequest as error:
            return json_response({"error": str(error)}, 400)
        response = json_response({})
        gate.set_cookie(response, cookie)
        return response

    async def log_out(request: Request) -> Response:
        try:
            gate.check_token(request)
        except Refused as error:
            return json_response({"error": str(error)}, error.status)
        response = json_response({})
        gate.set_cookie(response, "")
        return response

    return [
        Route("/api/session", session),
        Route("/api/login", log_in, methods=["POST"]),
        Route("/api/logout", log_out, methods=["POST"]),
    ]


def _log_in(gate: Gate, event_log: EventLog, name: str, password: str) -> str:
    audit = Audit(event_log, "/api/login", name)
    try:
        cookie = gate.log_in(name, password)
    except Refused as error:
        log.warning("login refused: %s", error)
        if gate.is_user(name):  # a stranger cannot fill the log with names
            audit.try_record("failed", reason=str(error))
        raise
    audit.try_record("done")
    return cookie
