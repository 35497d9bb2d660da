"""Calls of model APIs that are no model call (lists of models, embeddings, counts of tokens): passed on unrecorded."""

import asyncio
from typing import Any

from stepstream.services.gateway.api_keys import Keys, credentials_of
from stepstream.services.gateway.errors import GatewayError, NotFound
from stepstream.services.gateway.http.asgi import (
    Disconnected,
    Hangup,
    Receive,
    Scope,
    Send,
    read_body,
    respond,
    respond_error,
)
from stepstream.services.gateway.http.client import Reply, StreamBroke
from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import ProtocolName
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.streams import json_object
from stepstream.services.gateway.upstreams import Target, Upstreams

MODELS = "/v1/models"
_WORKERS_HAVE = (MODELS, "/v1/embeddings", "/v1/completions")


class PassThrough:
    """Handles them."""

    def __init__(self, upstreams: Upstreams, keys: Keys) -> None:
        self._upstreams = upstreams
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send, path: str, raw_path: str) -> None:
        """One call; `path` begins with `/v1/`, and `raw_path` is the same, quoted as it came."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        try:
            shown = credentials_of(headers)
            self._keys.tenant(shown, "calls")
            body = await read_body(receive)
            target = self._target(path, json_object(body), headers)
            protocol: ProtocolName | None = "anthropic" if _is_anthropics(headers) else None
            sent = [header for header in target.headers(headers, shown, protocol) if header[0] != b"content-type"]
            sent += [header for header in headers if header[0] == b"content-type"]
            query = scope.get("query_string") or b""
            where = raw_path + ("?" + query.decode("latin-1") if query else "")
        except Disconnected:
            return
        except GatewayError as error:
            await self._refuse(send, path, error)
            return
        hangup = Hangup(scope)
        try:
            reply = await target.send(scope["method"], where, body or None, sent)
            await self._give_back(reply, send, hangup)
        except GatewayError as error:
            hangup.stop()
            await self._refuse(send, path, error)
        except asyncio.CancelledError:
            if not hangup.gone:
                raise
        finally:
            hangup.stop()

    @staticmethod
    async def _refuse(send: Send, path: str, error: GatewayError) -> None:
        protocol = ANTHROPIC if path.startswith(ANTHROPIC.path) else CHAT
        await respond_error(send, error, protocol.error_body(str(error), error.type))

    @staticmethod
    async def _give_back(reply: Reply, send: Send, hangup: Hangup) -> None:
        if not reply.streaming:
            hangup.stop()
            await respond(send, reply.status, reply.body, reply.headers)
            return
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
            chunk = reply.body
            while chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await reply.more()
            hangup.stop()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except StreamBroke:
            return  # without an end, so that the caller sees the connection cut
        finally:
            reply.close()

    def _target(self, path: str, body: dict[str, Any] | None, headers: list[tuple[bytes, bytes]]) -> Target:
        model = body.get("model") if body is not None else None
        if path.startswith(MODELS + "/"):
            model = path[len(MODELS) + 1 :]
        target: Target = self._upstreams.workers
        if isinstance(model, str):
            target = self._upstreams.serving(model)
        elif _is_anthropics(headers):
            target = self._upstreams.speaking("anthropic")
        elif not path.startswith(_WORKERS_HAVE):
            target = self._upstreams.speaking("responses")
            if target is self._upstreams.workers:
                target = self._upstreams.speaking("chat")
        if target is self._upstreams.workers and not path.startswith(_WORKERS_HAVE):
            raise NotFound(f"nothing answers at {path}: inference workers have {', '.join(_WORKERS_HAVE)}")
        return target


def _is_anthropics(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"anthropic-version" for name, _ in headers)
