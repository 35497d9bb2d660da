"""Send calls to inference workers and to declared model providers, with the headers and retries that each needs.

A call to a worker that fails before the agent got a byte is retried on another worker, or after a pause. That is safe:
a chat completion changes nothing at the worker, and nobody received the lost answer. Since the call may be what kills
its workers, it fails with only a few of them (`Attempts`). A call to a provider may cost money, so it is retried only
if the connection was refused and nothing was sent.
"""

import asyncio
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from stepstream.config import GatewaySettings, ProviderSettings
from stepstream.core import lenient_json
from stepstream.services.gateway.api_keys import Credentials
from stepstream.services.gateway.attempts import UNAVAILABLE, Attempts
from stepstream.services.gateway.errors import NoUpstream, UpstreamDied, UpstreamSilent, encode_request
from stepstream.services.gateway.http.client import (
    FAULTS,
    HOP_BY_HOP,
    HttpClient,
    Origin,
    Reply,
    ReplyTimeout,
    Unreachable,
)
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.base import ProtocolName
from stepstream.services.gateway.response_ids import AccountIds
from stepstream.services.gateway.routing import ProviderRoutes
from stepstream.services.gateway.worker_pool import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Route,
    Upstream,
    Worker,
    WorkerPool,
)

_TO_WORKERS = frozenset({b"traceparent", b"tracestate", b"x-request-id", b"openai-beta"})
_NOT_TO_PROVIDERS = HOP_BY_HOP | frozenset(
    b"host content-length content-type accept-encoding expect cookie authorization x-api-key".split()
)
_JSON = (b"content-type", b"application/json")

Incoming = Iterable[tuple[bytes, bytes]]
Outgoing = Sequence[tuple[bytes, bytes]]


class Target(Protocol):
    """A destination of calls."""

    name: str
    speaks: Sequence[ProtocolName]
    gives_tokens: bool
    plain_logprobs: bool
    """True if it can return logprobs as numbers alone."""
    fallbacks: Sequence["Target"]
    """Targets of a call that it cannot serve, in their order."""
    account_ids: AccountIds | None
    """Response ids of the operator's account, which all callers share; None: each caller has its own credentials."""

    def headers(self, incoming: Incoming, credentials: Credentials, protocol: ProtocolName | None = None) -> Outgoing:
        """Return the headers to send, with the target's credentials; `protocol`: that of the call, if known."""
        ...

    def admit(self, model: str) -> None:
        """Check that a call may begin.

        Raises:
            UnknownModel: nothing serves the model.
            Overloaded: it cannot take another call now.
        """
        ...

    async def send(
        self, method: str, path: str, body: bytes | None, headers: Outgoing, route: Route | None = None
    ) -> Reply:
        """Send one call. `path` begins with `/v1` and is percent-encoded; `route` chooses among inference workers.

        Raises:
            NoUpstream: nothing answered, and nothing was done.
            UpstreamDied, UpstreamSilent: a provider, or as many workers as may, accepted the call and gave no answer.
        """
        ...


class Workers:
    """The inference workers."""

    name = "workers"
    speaks: Sequence[ProtocolName] = ("chat",)
    gives_tokens = True
    plain_logprobs = True
    fallbacks: Sequence[Target] = ()
    account_ids: AccountIds | None = None

    def __init__(self, settings: GatewaySettings, client: HttpClient, metrics: Metrics) -> None:
        self.pool = WorkerPool(settings.upstreams, settings.max_queue_per_worker, settings.sticky_overload)
        self._client = client
        self._deadline_s = settings.upstream_deadline_s
        self._attempts = settings.upstream_attempts
        key = settings.upstream_key
        self._key = [_bearer(key.get_secret_value().strip().encode())] if key is not None else []
        self._metrics = metrics
        self._origins: dict[str, Origin] = {}

    def headers(self, incoming: Incoming, credentials: Credentials, protocol: ProtocolName | None = None) -> Outgoing:
        """Return trace and request ids; a caller's key of a provider is none of a worker's business."""
        return [*[header for header in incoming if header[0] in _TO_WORKERS], *self._key, _JSON]

    def admit(self, model: str) -> None:
        """Check that a call may begin.

        Raises:
            UnknownModel: no worker serves the model or has served it.
            Overloaded: all workers of the model are at their limit.
        """
        self.pool.admit(model, time.monotonic())

    async def send(
        self, method: str, path: str, body: bytes | None, headers: Outgoing, route: Route | None = None
    ) -> Reply:
        """Send one call; retry for `gateway.upstream_deadline_s` seconds after the first failure.

        `route` gets the worker that answered, the name of the model there, and the track in use. If all retries fail
        and a worker answered with a status of `UNAVAILABLE`, return its last such answer.

        Raises:
            NoUpstream: no worker of the model answered in that time.
            UpstreamDied, UpstreamSilent: as many workers as may (`Attempts`) accepted the call and gave no answer.
        """
        route = route or Route()
        attempts = Attempts(route.attempts or self._attempts, self._deadline_s)
        deadline: float | None = None
        unavailable: Reply | None = None
        while True:
            now = time.monotonic()
            self._check_track(route)
            upstream = self.pool.choose(now, route)
            if upstream is None:
                await asyncio.sleep(max(self.pool.next_try(now, route) - now, 0.001))
            else:
                try:
                    reply = await self._call(upstream, method, path, body, headers, route)
                except FAULTS as error:
                    attempts.fail(error, time.monotonic() - now)
                else:
                    if reply.status not in UNAVAILABLE or not attempts.may_repeat(reply.status, time.monotonic() - now):
                        return reply
                    unavailable = reply
            now = time.monotonic()
            deadline = deadline or now + self._deadline_s
            if now >= deadline:
                if unavailable is not None:
                    return unavailable
                of_model = f" of the model '{route.model}'" if route.model else ""
                raise NoUpstream(f"no inference worker{of_model} answered: {self.pool.faults(route)}")

    async def _call(
        self, worker: Worker, method: str, path: str, body: bytes | None, headers: Outgoing, route: Route
    ) -> Reply:
        """Send a call to a worker once, and note in `worker` how it went."""
        self._count_choice(route, worker)
        name = worker.served_name(route)
        sent = with_model(body, name) if name and body else body
        marked = [*headers, (b"x-stepstream-track", route.track.encode())] if route.model else headers
        fault = ""
        try:
            reply = await self._client.call(worker, self._origin(worker.url), method, path, sent, marked)
            fault = f"HTTP {reply.status}" if reply.status in UNAVAILABLE else ""
        except FAULTS as error:
            fault = str(error) or type(error).__name__
            raise
        finally:
            if fault:
                worker.failed(fault, time.monotonic())
                self._metrics.upstream_failures.inc()
        if not fault:
            worker.succeeded()
            route.preferred, route.served_name = worker.url, name
        return reply

    def count_states(self) -> None:
        """Set the gauge of workers by model and state."""
        self._metrics.workers.clear()
        now = time.monotonic()
        for worker in self.pool.upstreams:
            announced = worker.announced
            state = "paused" if worker.paused_until > now else "static" if announced is None else announced.state
            self._metrics.workers.labels("" if announced is None else announced.model, state).inc()

    def _check_track(self, route: Route) -> None:
        """Use `stable` if no worker serves the canary: its worker left, or the rollout is newer than the workers."""
        if route.track == "canary" and not self.pool.has_track(route.model, "canary"):
            route.track = "stable"
            self._metrics.canary_unserved.inc()

    def _origin(self, url: str) -> Origin:
        origin = self._origins.get(url)
        if origin is None:
            origin = self._origins[url] = Origin.of(url)
        return origin

    def _count_choice(self, route: Route, worker: Worker) -> None:
        if route.preferred == worker.url:
            self._metrics.worker_kept.inc()
        elif route.preferred:
            self._metrics.worker_moved.inc()
        elif route.key:
            self._metrics.worker_first.inc()


class Provider:
    """A declared model provider."""

    def __init__(self, settings: ProviderSettings, deadline_s: float, client: HttpClient, metrics: Metrics) -> None:
        """`deadline_s`: seconds for which refused connections are retried."""
        self.name = settings.name
        self.speaks: Sequence[ProtocolName] = settings.protocols
        self.gives_tokens = settings.gives_tokens
        self.plain_logprobs = False
        self.fallbacks: Sequence[Target] = ()
        self._aliases = settings.aliases
        self.upstream = Upstream(settings.base_url.rstrip("/") + settings.path_prefix.rstrip("/"))
        self._origin = client.origin(self.upstream.url)
        self._key = settings.api_key.get_secret_value().strip().encode() if settings.api_key is not None else b""
        self.account_ids = AccountIds(self._key) if self._key else None
        self._deadline_s = deadline_s
        self._client = client
        self._metrics = metrics

    def headers(self, incoming: Incoming, credentials: Credentials, protocol: ProtocolName | None = None) -> Outgoing:
        """Return the caller's headers without the connection's and Stepstream's, with the declared key if there is one.

        Without a declared key, the caller's own upstream credentials are sent.
        """
        headers = [
            header
            for header in incoming
            if header[0] not in _NOT_TO_PROVIDERS and not header[0].startswith(b"x-stepstream-")
        ]
        headers.append(_JSON)
        if self._key:
            headers.append((b"x-api-key", self._key) if protocol == "anthropic" else _bearer(self._key))
            return headers
        own = dict(credentials.upstream)
        if protocol == "chat" and b"authorization" not in own and b"x-api-key" in own:  # the call was translated
            return [*headers, _bearer(own[b"x-api-key"])]
        return [*headers, *credentials.upstream]

    def admit(self, model: str) -> None:
        """Accept every call: the provider has limits of its own."""

    async def send(
        self, method: str, path: str, body: bytes | None, headers: Outgoing, route: Route | None = None
    ) -> Reply:
        """Send one call, with the provider's name of its model.

        Only a refused connection is retried, for `gateway.upstream_deadline_s` seconds; not if another target follows.

        Raises:
            NoUpstream: no connection in that time.
            UpstreamDied, UpstreamSilent: the provider accepted the call and gave no answer.
        """
        path = path.removeprefix("/v1")
        route = route or Route()
        if body and (name := self._aliases.get(route.model)):
            body = with_model(body, name)
        deadline: float | None = None
        pause = FIRST_PAUSE_S
        while True:
            try:
                reply = await self._client.call(self.upstream, self._origin, method, path, body, headers)
            except FAULTS as error:
                self._metrics.upstream_failures.inc()
                fault = str(error) or type(error).__name__
                self.upstream.fault = fault
                now = time.monotonic()
                deadline = deadline or now + self._deadline_s
                if not isinstance(error, Unreachable):
                    if isinstance(error, ReplyTimeout):
                        raise UpstreamSilent(f"{self.name} was silent for too long: {fault}") from error
                    raise UpstreamDied(f"{self.name} took the call and gave no answer: {fault}") from error
                if not route.is_last or isinstance(error.__cause__, ssl.SSLError) or now + pause >= deadline:
                    raise NoUpstream(f"{self.name} cannot be reached: {fault}") from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                self.upstream.fault = ""
                return reply


def with_model(body: bytes, name: str) -> bytes:
    """Return a JSON body with another name of its model.

    Raises:
        NestedTooDeeply: it cannot be written.
    """
    return encode_request(lenient_json.loads(body) | {"model": name})


def _bearer(key: bytes) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + key


class Upstreams:
    """All targets, by model and protocol. Create it inside the event loop, and close it."""

    def __init__(self, settings: GatewaySettings, metrics: Metrics, client: HttpClient | None = None) -> None:
        self._client = client or HttpClient(settings)
        self.workers = Workers(settings, self._client, metrics)
        self.providers = {
            provider.name: Provider(provider, settings.upstream_deadline_s, self._client, metrics)
            for provider in settings.providers
        }
        for declared in settings.providers:
            self.providers[declared.name].fallbacks = [self.providers[name] for name in declared.fallbacks]
        self._routes = ProviderRoutes(settings.providers)

    def for_model(self, model: str) -> Target:
        """Return the target that serves a model."""
        provider = self._routes.for_model(model)
        return self.workers if provider is None else self.providers[provider.name]

    def for_protocol(self, protocol: ProtocolName) -> Target:
        """Return the target of a call that names no model."""
        provider = self._routes.for_protocol(protocol)
        return self.workers if provider is None else self.providers[provider.name]

    def all(self) -> list[Upstream]:
        """Return load and health of the workers, then of the providers."""
        return [*self.workers.pool.upstreams, *(provider.upstream for provider in self.providers.values())]

    def available(self) -> int:
        """Return the number of workers that serve a version, and of providers. Pauses do not count: they take 1 s."""
        return len(self.workers.pool.candidates("")) + len(self.providers)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
