"""What is behind the gateway: inference workers, and declared model providers.

A call to a worker that dies before the agent got a byte is made again elsewhere, or a little later. Repeating is safe:
a chat completion changes nothing at the worker, and what nobody received did not happen. A call to a provider may cost
money, so it is made again only where the connection was refused and nothing had been sent.
"""

import asyncio
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from stepstream.config import GatewaySettings
from stepstream.config import ProviderSettings as Declared
from stepstream.services.gateway.api_keys import Credentials
from stepstream.services.gateway.errors import NoUpstream, UpstreamDied, UpstreamSilent
from stepstream.services.gateway.http.client import FAULTS, HOP_BY_HOP, HttpClient, Origin, Reply, Unreachable
from stepstream.services.gateway.http.connection import Silent
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.base import ProtocolName
from stepstream.services.gateway.routing import FIRST_PAUSE_S, LONGEST_PAUSE_S, Pool, Routes, Upstream

UNAVAILABLE = frozenset({502, 503, 504})
"""Statuses of a worker that is starting or of a proxy before a dead one: as if it had refused the connection."""

_TO_WORKERS = frozenset({b"traceparent", b"tracestate", b"x-request-id", b"openai-beta"})
_NOT_TO_PROVIDERS = HOP_BY_HOP | frozenset(
    b"host content-length content-type accept-encoding expect cookie authorization x-api-key".split()
)
_JSON = (b"content-type", b"application/json")

Incoming = Iterable[tuple[bytes, bytes]]
Outgoing = Sequence[tuple[bytes, bytes]]


class Target(Protocol):
    """Where a call can be sent."""

    name: str
    speaks: Sequence[ProtocolName]
    gives_tokens: bool
    plain_logprobs: bool
    """Whether it knows how to give logprobs as numbers alone."""

    def headers(self, incoming: Incoming, shown: Credentials, protocol: ProtocolName | None = None) -> Outgoing:
        """The headers of a call that it gets, with the credentials that it wants; `protocol`: that it is called in."""
        ...

    async def send(self, method: str, path: str, body: bytes | None, headers: Outgoing) -> Reply:
        """Makes one call. `path` begins with `/v1` and is quoted as in a URL.

        Raises:
            NoUpstream: nothing answered, and nothing was done.
            UpstreamDied, UpstreamSilent: of a provider: it took the call and gave no answer.
        """
        ...


class Workers:
    """Our inference workers."""

    name = "workers"
    speaks: Sequence[ProtocolName] = ("chat",)
    gives_tokens = True
    plain_logprobs = True

    def __init__(self, settings: GatewaySettings, client: HttpClient, metrics: Metrics) -> None:
        self.pool = Pool(settings.upstreams)
        self._client = client
        self._deadline_s = settings.upstream_deadline_s
        self._metrics = metrics
        self._origins = {upstream.url: Origin.of(upstream.url) for upstream in self.pool.upstreams}

    def headers(self, incoming: Incoming, shown: Credentials, protocol: ProtocolName | None = None) -> Outgoing:
        """Those that mean something to a worker."""
        return [*[header for header in incoming if header[0] in _TO_WORKERS], *shown.upstream, _JSON]

    async def send(self, method: str, path: str, body: bytes | None, headers: Outgoing) -> Reply:
        """Makes one call; tries again for `gateway.upstream_deadline_s` seconds since the first failure.

        Raises:
            NoUpstream: none has answered in that time.
        """
        give_up: float | None = None
        unavailable: Reply | None = None
        while True:
            now = time.monotonic()
            upstream = self.pool.choose(now)
            if upstream is None:
                await asyncio.sleep(max(self.pool.next_try() - now, 0.001))
            else:
                try:
                    origin = self._origins[upstream.url]
                    reply = await self._client.call(upstream, origin, method, path, body, headers)
                except FAULTS as error:
                    upstream.failed(str(error) or type(error).__name__, time.monotonic())
                else:
                    if reply.status not in UNAVAILABLE:
                        upstream.succeeded()
                        return reply
                    unavailable = reply
                    upstream.failed(f"HTTP {reply.status}", time.monotonic())
                self._metrics.upstream_failures.inc()
            now = time.monotonic()
            give_up = give_up or now + self._deadline_s
            if now >= give_up:
                if unavailable is not None:
                    return unavailable
                raise NoUpstream(f"no inference worker answered: {self.pool.faults()}")


class Provider:
    """A declared model provider."""

    def __init__(self, declared: Declared, deadline_s: float, client: HttpClient, metrics: Metrics) -> None:
        self.name = declared.name
        self.speaks: Sequence[ProtocolName] = declared.protocols
        self.gives_tokens = declared.gives_tokens
        self.plain_logprobs = False
        self.upstream = Upstream(declared.base_url.rstrip("/") + declared.path_prefix.rstrip("/"))
        self._origin = Origin.of(self.upstream.url)
        self._key = declared.api_key.get_secret_value().strip().encode() if declared.api_key is not None else b""
        self._deadline_s = deadline_s
        self._client = client
        self._metrics = metrics

    def headers(self, incoming: Incoming, shown: Credentials, protocol: ProtocolName | None = None) -> Outgoing:
        """All but those of the connection and ours; the declared key, else the caller's own."""
        kept = [
            header
            for header in incoming
            if header[0] not in _NOT_TO_PROVIDERS and not header[0].startswith(b"x-stepstream-")
        ]
        kept.append(_JSON)
        if self._key:
            kept.append((b"x-api-key", self._key) if protocol == "anthropic" else _bearer(self._key))
            return kept
        own = dict(shown.upstream)
        if protocol == "chat" and b"authorization" not in own and b"x-api-key" in own:  # translated from another's
            return [*kept, _bearer(own[b"x-api-key"])]
        return [*kept, *shown.upstream]

    async def send(self, method: str, path: str, body: bytes | None, headers: Outgoing) -> Reply:
        """Makes one call; again only after a refused connection, for `gateway.upstream_deadline_s` seconds.

        Raises:
            NoUpstream: no connection in that time.
            UpstreamDied, UpstreamSilent: it took the call and gave no answer.
        """
        path = path.removeprefix("/v1")
        give_up: float | None = None
        pause = FIRST_PAUSE_S
        while True:
            try:
                reply = await self._client.call(self.upstream, self._origin, method, path, body, headers)
            except FAULTS as error:
                self._metrics.upstream_failures.inc()
                fault = str(error) or type(error).__name__
                self.upstream.fault = fault
                now = time.monotonic()
                give_up = give_up or now + self._deadline_s
                if not isinstance(error, Unreachable):
                    if isinstance(error, Silent):
                        raise UpstreamSilent(f"{self.name} was silent for too long: {fault}") from error
                    raise UpstreamDied(f"{self.name} took the call and gave no answer: {fault}") from error
                if isinstance(error.__cause__, ssl.SSLError) or now + pause >= give_up:
                    raise NoUpstream(f"{self.name} cannot be reached: {fault}") from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                self.upstream.fault = ""
                return reply


def _bearer(key: bytes) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + key


class Upstreams:
    """All of them, by the models that they serve. Create it inside the event loop, and close it."""

    def __init__(self, settings: GatewaySettings, metrics: Metrics) -> None:
        self._client = HttpClient(settings.upstream_silence_s)
        self.workers = Workers(settings, self._client, metrics)
        self.providers = {
            declared.name: Provider(declared, settings.upstream_deadline_s, self._client, metrics)
            for declared in settings.providers
        }
        self._routes = Routes(settings.providers)

    def serving(self, model: str) -> Target:
        """Who serves a model."""
        declared = self._routes.provider(model)
        return self.workers if declared is None else self.providers[declared.name]

    def speaking(self, protocol: ProtocolName) -> Target:
        """Who gets a call that names no model."""
        declared = self._routes.speaking(protocol)
        return self.workers if declared is None else self.providers[declared.name]

    def all(self) -> list[Upstream]:
        """Workers and providers, as calls to them show them."""
        return [*self.workers.pool.upstreams, *(provider.upstream for provider in self.providers.values())]

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()
