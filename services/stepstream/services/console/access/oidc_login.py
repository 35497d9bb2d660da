"""Serve the two addresses of a login at an OpenID Connect provider: to it, and back from it."""

import logging
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from stepstream.config import ConsoleSettings
from stepstream.services.console.access.audit import Audit
from stepstream.services.console.access.gate import Gate
from stepstream.services.console.access.identity import NoAccess
from stepstream.services.console.access.oidc import FLOW_S, LoginFailed, OidcClient
from stepstream.services.console.event_log import EventLog

log = logging.getLogger(__name__)

CALLBACK = "/oidc/callback"
_LONGEST_TARGET = 1000


def redirect_uri(config: ConsoleSettings) -> str:
    """Return the address that the provider must allow for the console."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{config.public_url or f'http://{host}:{config.port}'}{CALLBACK}"


def oidc_routes(gate: Gate, client: OidcClient, event_log: EventLog) -> list[Route]:
    """Return the routes of the login."""
    cookie = "__Secure-stepstream-oidc" if gate.is_secure else "stepstream-oidc"

    async def begin(request: Request) -> Response:
        try:
            begun = await run_in_threadpool(client.begin, _target(request.query_params.get("to", "")))
        except LoginFailed as error:
            return _refused("provider", error)
        response = _redirect(begun.address)
        # Lax: the provider's page leads back here from another site.
        response.set_cookie(
            cookie, begun.cookie, max_age=FLOW_S, path="/oidc", httponly=True, samesite="lax", secure=gate.is_secure
        )
        return response

    async def callback(request: Request) -> Response:
        try:
            user, target = await run_in_threadpool(
                client.finish, request.cookies.get(cookie, ""), dict(request.query_params)
            )
        except LoginFailed as error:
            return _refused("login", error)
        except NoAccess as error:
            return _refused("access", error)
        await run_in_threadpool(Audit(event_log, CALLBACK, user.name, user.role, user.tenant).try_record, "done")
        response = _redirect(target)
        gate.set_cookie(response, gate.begin_oidc(user))
        response.delete_cookie(cookie, path="/oidc", httponly=True, samesite="lax", secure=gate.is_secure)
        return response

    return [Route("/oidc/login", begin), Route(CALLBACK, callback)]


def _target(text: str) -> str:
    """Return a path of the console; never an address elsewhere."""
    is_path = text.startswith("/") and not text.startswith(("//", "/\\")) and len(text) <= _LONGEST_TARGET
    return text if is_path and text.isprintable() else "/overview"


def _redirect(address: str) -> Response:
    return RedirectResponse(address, 303, {"Cache-Control": "no-store"})


def _refused(reason: str, error: Exception) -> Response:
    """Lead back to the form, which says why; the details are in the log of the process."""
    log.warning("login by OpenID Connect refused: %s", error)
    return _redirect(f"/login?{urlencode({'refused': reason})}")
