"""Pass other requests of model APIs (lists of models, embeddings, token counts) to an upstream without recording."""

import asyncio
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from stepstream.services.gateway.api_keys import CALLS, ApiKeys, credentials_of
from stepstream.services.gateway.errors import (
    GatewayError,
    MalformedResponse,
    NotFound,
    UnknownResponse,
    encode_request,
)
from stepstream.services.gateway.grant import Grant, is_stateless
from stepstream.services.gateway.http.asgi import (
    JSON,
    CancelOnDisconnect,
    Disconnected,
    Receive,
    Scope,
    Send,
    read_body,
    respond,
    respond_error,
)
from stepstream.services.gateway.http.client import Reply, StreamInterrupted
from stepstream.services.gateway.key_usage import KeyCounts
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import ProtocolName
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.protocols.messages import count
from stepstream.services.gateway.response_ids import TenantIds, with_original_id
from stepstream.services.gateway.streams import parse_object
from stepstream.services.gateway.upstreams import Target, Upstreams
from stepstream.services.gateway.used_tokens import estimated_tokens
from stepstream.services.gateway.worker_pool import Route

MODELS = "/v1/models"
_WORKER_PATHS = (MODELS, "/v1/embeddings", "/v1/completions")
_RESPONSES = "/v1/responses/"
_WITHOUT_ID = (f"{_RESPONSES}compact", f"{_RESPONSES}input_tokens")
_RESPONSE_PATH = re.compile(rf"{_RESPONSES}([^/]+)(.*)", re.DOTALL)
"""Path of a stored response: its id, and the rest."""


@dataclass(slots=True)
class _Request:
    """One request, ready to be sent."""

    grant: Grant
    target: Target
    model: str
    url: str
    body: bytes
    headers: list[tuple[bytes, bytes]]
    response_ids: TenantIds | None
    """Ids of responses in the reply get the tenant's tag; None: they are unchanged."""
    is_free: bool
    """True if the provider charges nothing for it."""


class PassThrough:
    """Handles requests that are no model calls. Without an API key, all are passed."""

    def __init__(self, upstreams: Upstreams, keys: ApiKeys, counts: KeyCounts) -> None:
        self._upstreams = upstreams
        self._keys = keys
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send, path: str, raw_path: str) -> None:
        """Handle one request; `path` begins with `/v1/`, and `raw_path` is the same, percent-encoded."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        try:
            grant = self._keys.authorize(credentials_of(headers), CALLS)
            grant.check_path(scope["method"], path)
            body = await read_body(receive)
            model = _model_of(path, parse_object(body))
            if model or body:
                self._keys.check_model(grant, model)
            target = self._target(path, model, headers)
            models = self._upstreams.workers.pool.served_models()
            if path == MODELS and target is self._upstreams.workers and models is not None:
                await respond(send, 200, _model_list([each for each in models if grant.may_call(each)]), [JSON])
                return
            target.admit(model)
            request = _request(scope, grant, target, model, body, path, raw_path)
        except Disconnected:
            return
        except GatewayError as error:
            await self._respond_error(send, path, error)
            return
        canceller = CancelOnDisconnect(scope)
        try:
            reply = await target.send(scope["method"], request.url, request.body or None, request.headers, Route(model))
            await self._respond(request, reply, send, canceller)
        except GatewayError as error:
            canceller.stop()
            await self._respond_error(send, path, error)
        except asyncio.CancelledError:
            if not canceller.disconnected:
                raise
        finally:
            canceller.stop()

    def _target(self, path: str, model: str, headers: list[tuple[bytes, bytes]]) -> Target:
        target: Target = self._upstreams.workers
        if model:
            target = self._upstreams.for_model(model)
        elif _is_anthropic(headers):
            target = self._upstreams.for_protocol("anthropic")
        elif not path.startswith(_WORKER_PATHS):
            target = self._upstreams.for_protocol("responses")
            if target is self._upstreams.workers:
                target = self._upstreams.for_protocol("chat")
        if target is self._upstreams.workers and not path.startswith(_WORKER_PATHS):
            raise NotFound(f"nothing answers at {path}: inference workers have {', '.join(_WORKER_PATHS)}")
        return target

    async def _respond(self, request: _Request, reply: Reply, send: Send, canceller: CancelOnDisconnect) -> None:
        if not reply.streaming:
            canceller.stop()
            body = parse_object(reply.body)
            self._count(request, reply.status, body, len(reply.body))
            content = reply.body
            if request.response_ids is not None and body is not None and request.response_ids.tag_reply(body):
                content = _encode_reply(body)
            await respond(send, reply.status, content, reply.headers)
            return
        size = 0
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
            chunk = reply.body
            while chunk:
                size += len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await reply.more()
            canceller.stop()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except StreamInterrupted:
            return  # without a last message, the server cuts the connection, so that the caller notices
        finally:
            reply.close()
            self._count(request, reply.status, None, size)

    def _count(self, request: _Request, status: int, body: dict[str, Any] | None, size: int) -> None:
        """Count the tokens of a request that runs a model: as reported, else estimated by its size and the reply's."""
        if not request.grant.key_id or not request.model or request.is_free or status >= 400:
            return
        usage = body.get("usage") if body is not None else None
        reported = usage if isinstance(usage, dict) else {}
        prompt = count(reported.get("prompt_tokens", reported.get("input_tokens")))
        response = count(reported.get("completion_tokens", reported.get("output_tokens")))
        if prompt is None and response is None:
            prompt, response = estimated_tokens(len(request.body)), estimated_tokens(size)
        self._counts.add_tokens(request.grant.key_id, request.model, prompt or 0, response or 0)

    @staticmethod
    async def _respond_error(send: Send, path: str, error: GatewayError) -> None:
        protocol = ANTHROPIC if path.startswith(ANTHROPIC.path) else CHAT
        await respond_error(send, error, protocol.error_body(str(error), error.type, error.code, error.param))


def _encode_reply(body: Any) -> bytes:
    """Return a parsed reply as JSON.

    Raises:
        MalformedResponse: it is nested too deeply.
    """
    try:
        return orjson.dumps(body)
    except TypeError:
        raise MalformedResponse("the upstream's answer cannot be written: it is nested too deeply") from None


def _request(scope: Scope, grant: Grant, target: Target, model: str, body: bytes, path: str, raw_path: str) -> _Request:
    """Return the request to the target.

    Raises:
        NotFound, UnknownResponse: it names a stored response that is not the tenant's.
        NestedTooDeeply: it must be written anew, and cannot be.
    """
    incoming: list[tuple[bytes, bytes]] = scope["headers"]
    response_ids = None
    parsed = parse_object(body) if grant.key_id else None
    if grant.tenant is not None and target.account_ids is not None and path.startswith(_RESPONSES):
        response_ids = target.account_ids.of(grant.tenant)
        raw_path = _with_original_id(path, response_ids)
        parsed = None if parsed is None else with_original_id(parsed, response_ids)
    if parsed is not None:
        body = encode_request(parsed)  # of two fields of one name, the upstream reads the one that was checked
    protocol: ProtocolName | None = "anthropic" if _is_anthropic(incoming) else None
    headers = target.headers(incoming, credentials_of(incoming), protocol)
    headers = [header for header in headers if header[0] != b"content-type"]
    headers += [header for header in incoming if header[0] == b"content-type"]
    query = scope.get("query_string") or b""
    url = raw_path + ("?" + query.decode("latin-1") if query else "")
    is_free = is_stateless(scope["method"], path)
    return _Request(grant, target, model, url, body, headers, response_ids, is_free)


def _with_original_id(path: str, response_ids: TenantIds) -> str:
    """Return the percent-encoded path with the provider's id of a response."""
    if path in _WITHOUT_ID:
        return path
    match = _RESPONSE_PATH.fullmatch(path)
    if match is None:
        raise NotFound(f"nothing answers at {path}")
    try:
        return f"{_RESPONSES}{quote(response_ids.original(match[1]), safe='')}{quote(match[2])}"
    except UnknownResponse as error:
        raise NotFound(str(error)) from None


def _model_list(models: list[str]) -> bytes:
    """Return the list of the workers' models; one worker knows only its own."""
    data = [{"id": model, "object": "model", "owned_by": "stepstream"} for model in models]
    return orjson.dumps({"object": "list", "data": data})


def _model_of(path: str, body: dict[str, Any] | None) -> str:
    """Return the model that a request names in its path or body; empty: none."""
    model = body.get("model") if body is not None else None
    if path.startswith(MODELS + "/"):
        model = path[len(MODELS) + 1 :]
    return model if isinstance(model, str) else ""


def _is_anthropic(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"anthropic-version" for name, _ in headers)
