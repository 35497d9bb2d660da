"""Pass other requests of model APIs (lists of models, embeddings, token counts) to an upstream without recording."""

import asyncio
from typing import Any

import orjson

from stepstream.services.gateway.api_keys import ApiKeys, credentials_of
from stepstream.services.gateway.errors import GatewayError, NotFound
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
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import ProtocolName
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.streams import parse_object
from stepstream.services.gateway.upstreams import Target, Upstreams
from stepstream.services.gateway.worker_pool import Route

MODELS = "/v1/models"
_WORKER_PATHS = (MODELS, "/v1/embeddings", "/v1/completions")


class PassThrough:
    """Handles requests that are no model calls."""

    def __init__(self, upstreams: Upstreams, keys: ApiKeys) -> None:
        self._upstreams = upstreams
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send, path: str, raw_path: str) -> None:
        """Handle one request; `path` begins with `/v1/`, and `raw_path` is the same, percent-encoded."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        try:
            credentials = credentials_of(headers)
            self._keys.authorize(credentials, "calls")
            body = await read_body(receive)
            model = _model_of(path, parse_object(body))
            target = self._target(path, model, headers)
            models = self._upstreams.workers.pool.served_models()
            if path == MODELS and target is self._upstreams.workers and models is not None:
                await respond(send, 200, _model_list(models), [JSON])
                return
            target.admit(model)
            protocol: ProtocolName | None = "anthropic" if _is_anthropic(headers) else None
            outgoing = [
                header for header in target.headers(headers, credentials, protocol) if header[0] != b"content-type"
            ]
            outgoing += [header for header in headers if header[0] == b"content-type"]
            query = scope.get("query_string") or b""
            url = raw_path + ("?" + query.decode("latin-1") if query else "")
        except Disconnected:
            return
        except GatewayError as error:
            await self._respond_error(send, path, error)
            return
        canceller = CancelOnDisconnect(scope)
        try:
            reply = await target.send(scope["method"], url, body or None, outgoing, Route(model))
            await self._respond(reply, send, canceller)
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

    @staticmethod
    async def _respond(reply: Reply, send: Send, canceller: CancelOnDisconnect) -> None:
        if not reply.streaming:
            canceller.stop()
            await respond(send, reply.status, reply.body, reply.headers)
            return
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
            chunk = reply.body
            while chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await reply.more()
            canceller.stop()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except StreamInterrupted:
            return  # without a last message, the server cuts the connection, so that the caller notices
        finally:
            reply.close()

    @staticmethod
    async def _respond_error(send: Send, path: str, error: GatewayError) -> None:
        protocol = ANTHROPIC if path.startswith(ANTHROPIC.path) else CHAT
        await respond_error(send, error, protocol.error_body(str(error), error.type))


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
