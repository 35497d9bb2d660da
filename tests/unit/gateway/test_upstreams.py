"""Each upstream gets the headers and credentials that are meant for it, and never an API key of Stepstream."""

import itertools
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from pydantic import ValidationError

from stepstream.config import GatewaySettings, ProviderSettings, SettingsError, effective, environment_of, load
from stepstream.services.gateway import upstreams
from stepstream.services.gateway.api_keys import credentials_of
from stepstream.services.gateway.call_plan import PREFIX_UNKNOWN, CallPlan
from stepstream.services.gateway.errors import GatewayError, UpstreamDied, UpstreamSilent
from stepstream.services.gateway.fallbacks import send_call
from stepstream.services.gateway.http.client import ConnectionLost, Origin, Reply, ReplyTimeout, Unreachable
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.upstreams import Provider, Upstreams, Workers
from stepstream.services.gateway.worker_pool import Route

OPENAI = ProviderSettings(name="openai", base_url="https://o", models=["gpt-*"], protocols=["chat", "responses"])
INCOMING = [
    (b"host", b"gateway"),
    (b"connection", b"keep-alive"),
    (b"accept-encoding", b"gzip"),
    (b"content-type", b"application/json; charset=utf-8"),
    (b"x-stepstream-user", b"someone"),
    (b"anthropic-version", b"2023-06-01"),
    (b"openai-organization", b"org"),
    (b"authorization", b"Bearer callers"),
]


def provider(settings: ProviderSettings) -> Provider:
    return Provider(settings, 1.0, cast(Any, SimpleNamespace(origin=Origin.of)), Metrics())


def test_a_provider_gets_the_callers_headers_except_those_of_connection_and_gateway() -> None:
    outgoing = dict(provider(OPENAI).headers(INCOMING, credentials_of(INCOMING), "chat"))
    assert outgoing == {
        b"anthropic-version": b"2023-06-01",
        b"openai-organization": b"org",
        b"content-type": b"application/json",
        b"authorization": b"Bearer callers",
    }


@pytest.mark.parametrize(
    ("protocol", "name", "value"), [("chat", b"authorization", b"Bearer own"), ("anthropic", b"x-api-key", b"own")]
)
def test_a_declared_key_replaces_the_callers(protocol: str, name: bytes, value: bytes) -> None:
    settings = ProviderSettings.model_validate(OPENAI.model_dump() | {"api_key": "own"})
    outgoing = dict(provider(settings).headers(INCOMING, credentials_of(INCOMING), protocol))  # type: ignore[arg-type]
    assert outgoing[name] == value
    assert "callers" not in str(outgoing)


def test_an_api_key_of_stepstream_is_never_sent() -> None:
    headers = [(b"authorization", b"Bearer sk-stepstream-ab-secret"), (b"x-stepstream-key", b"sk-stepstream-ab-secret")]
    workers = Workers(GatewaySettings(), None, Metrics())  # type: ignore[arg-type]
    for target in (provider(OPENAI), workers):
        assert "secret" not in str(target.headers(headers, credentials_of(headers), "chat"))


def test_a_callers_key_never_goes_to_a_worker() -> None:
    outgoing = Workers(GatewaySettings(), cast(Any, None), Metrics()).headers(INCOMING, credentials_of(INCOMING))
    assert list(outgoing) == [(b"content-type", b"application/json")]
    settings = GatewaySettings.model_validate({"upstream_key": "workers"})
    outgoing = Workers(settings, cast(Any, None), Metrics()).headers(INCOMING, credentials_of(INCOMING))
    assert dict(outgoing)[b"authorization"] == b"Bearer workers"


class Client:
    """Ends calls as listed, and notes each with the time that it took."""

    def __init__(self, *ends: Exception | int) -> None:
        self.ends = list(ends)
        self.calls: list[tuple[str, Any, dict[bytes, bytes]]] = []

    origin = staticmethod(Origin.of)

    async def call(self, upstream: Any, origin: Origin, method: str, path: str, body: Any, headers: Any) -> Reply:
        self.calls.append((origin.url, orjson.loads(body), dict(headers)))
        end = self.ends.pop(0) if self.ends else 200
        if isinstance(end, Exception):
            raise end
        return Reply(end, [], b"{}", upstream)


async def call_workers(client: Client, route: Route | None = None, **settings: Any) -> Reply:
    settings["upstreams"] = [f"http://w{number}" for number in range(9)]  # enough that none is asked twice
    workers = Workers(GatewaySettings.model_validate(settings), cast(Any, client), Metrics())
    return await workers.send("POST", "/v1/chat/completions", b"{}", [], route)


async def test_a_harness_limits_the_attempts_of_its_calls() -> None:
    for attempts, ends in ((1, 1), (4, 4), (None, 3)):
        client = Client(*[ConnectionLost("gone")] * 32)
        with pytest.raises(UpstreamDied):
            await call_workers(client, Route(attempts=attempts))
        assert len(client.calls) == ends


async def test_a_call_that_kills_its_workers_is_sent_only_a_few_times() -> None:
    client = Client(*[ConnectionLost("gone")] * 32)
    with pytest.raises(UpstreamDied, match=r"3 inference workers took the call .*upstream_attempts"):
        await call_workers(client)
    assert len(client.calls) == 3
    client = Client(*[Unreachable("refused")] * 4, 503, 503, ConnectionLost("gone"), 502)  # only the last two count
    assert (await call_workers(client)).status == 200
    assert (await call_workers(Client(502, 504), upstream_attempts=2)).status == 504


@pytest.mark.parametrize(
    ("end", "error"), [(ConnectionLost("gone"), UpstreamDied), (ReplyTimeout("silent"), UpstreamSilent)]
)
async def test_a_call_that_may_have_run_for_minutes_is_not_sent_again(
    end: Exception, error: type[GatewayError], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(end)
    times = itertools.count(0.0, 61.0)
    monkeypatch.setattr(upstreams, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with pytest.raises(error):
        await call_workers(client)
    assert len(client.calls) == 1


def fallback_plan(client: Client, **fields: Any) -> Any:
    """Return the plan of a call of `fast` to a provider with a fallback."""
    first = OPENAI.model_dump() | {"aliases": {"fast": "gpt-5-mini"}, "fallbacks": ["second"], "api_key": "one"}
    second = {"name": "second", "base_url": "https://s", "models": ["x"], "aliases": {"fast": "small"}} | fields
    made = Upstreams(GatewaySettings.model_validate({"providers": [first, second]}), Metrics(), cast(Any, client))
    target = made.for_model("fast")
    conversation = SimpleNamespace(previous_response_id=None)
    request = {"model": "fast"}
    return CallPlan(
        call=cast(Any, SimpleNamespace(conversation=conversation)),
        protocol=CHAT,
        upstream_protocol=CHAT,
        target=target,
        path=CHAT.path,
        request=request,
        body=orjson.dumps(request),
        requested=CHAT.requested_additions(request),
        prefix=PREFIX_UNKNOWN,
        route=Route("fast"),
    )


async def send_plan(plan: CallPlan) -> Reply:
    return await send_call(plan, INCOMING, credentials_of(INCOMING), 60.0, Metrics())


@pytest.mark.parametrize("end", [Unreachable("refused"), 429, 500, 529])
async def test_a_fallback_gets_the_calls_that_a_provider_cannot_serve(end: Any) -> None:
    client = Client(end)
    plan = fallback_plan(client, gives_tokens=True)
    assert (await send_plan(plan)).status == 200
    assert [(url, body["model"]) for url, body, _ in client.calls] == [
        ("https://o/v1", "gpt-5-mini"),
        ("https://s/v1", "small"),
    ]
    assert client.calls[0][2][b"authorization"] == b"Bearer one"
    assert b"authorization" not in client.calls[1][2]  # neither the caller's key nor the first provider's
    assert client.calls[1][1]["return_token_ids"] is True
    assert plan.target.name == "second"


@pytest.mark.parametrize("end", [ConnectionLost("gone"), ReplyTimeout("silent"), 200, 400, 401])
async def test_no_fallback_gets_a_call_that_may_have_been_done_or_is_wrong(end: Any) -> None:
    client = Client(end)
    with suppress(UpstreamDied, UpstreamSilent):
        await send_plan(fallback_plan(client))
    assert len(client.calls) == 1


async def test_the_last_answer_returns_and_calls_that_only_the_first_provider_can_continue_have_no_fallback() -> None:
    assert (await send_plan(fallback_plan(Client(500, 429)))).status == 429
    plan = fallback_plan(client := Client(500))
    plan.call.conversation.previous_response_id = "resp_1"
    assert (await send_plan(plan)).status == 500
    assert (await send_plan(fallback_plan(Client(500), protocols=["chat"]))).status == 200
    assert len(client.calls) == 1


@pytest.mark.parametrize(("fallback", "fault"), [("none", "is no other provider"), ("openai", "is no other provider")])
def test_a_fallback_is_another_declared_provider(fallback: str, fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        GatewaySettings.model_validate({"providers": [OPENAI.model_dump() | {"fallbacks": [fallback]}]})


def test_the_key_of_a_translated_call_takes_the_form_of_chat() -> None:
    headers = [(b"x-api-key", b"callers")]
    assert (b"authorization", b"Bearer callers") in provider(OPENAI).headers(headers, credentials_of(headers), "chat")


def test_providers_are_declared_in_settings() -> None:
    declared = '[{"name":"o","base_url":"https://o","models":["gpt-*"],"api_key":"k-7731"}]'
    settings = load({"STEPSTREAM_GATEWAY_PROVIDERS": declared})
    (openai,) = settings.gateway.providers
    assert (openai.name, openai.protocols, openai.path_prefix) == ("o", ["chat"], "/v1")
    assert load(environment_of(settings)) == settings
    assert "k-7731" not in str(effective(settings, {}))
    with pytest.raises(SettingsError, match="STEPSTREAM_GATEWAY_PROVIDERS is not JSON"):
        load({"STEPSTREAM_GATEWAY_PROVIDERS": "gpt"})
    with pytest.raises(SettingsError, match=r"gateway\.providers\[0\]\.base_url: Field required"):
        load({"STEPSTREAM_GATEWAY_PROVIDERS": '[{"name":"o"}]'})
