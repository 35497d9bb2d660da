"""Each upstream gets the headers and credentials that are meant for it, and never an API key of Stepstream."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stepstream.config import GatewaySettings, ProviderSettings, SettingsError, effective, environment_of, load
from stepstream.services.gateway.api_keys import credentials_of
from stepstream.services.gateway.http.client import Origin
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.upstreams import Provider, Workers

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


def test_the_key_of_a_translated_call_takes_the_form_of_chat() -> None:
    headers = [(b"x-api-key", b"callers")]
    assert (b"authorization", b"Bearer callers") in provider(OPENAI).headers(headers, credentials_of(headers), "chat")


def test_providers_are_declared_in_settings() -> None:
    declared = '[{"name":"o","base_url":"https://o","models":["gpt-*"],"api_key":"hidden"}]'
    settings = load({"STEPSTREAM_GATEWAY_PROVIDERS": declared})
    (openai,) = settings.gateway.providers
    assert (openai.name, openai.protocols, openai.path_prefix) == ("o", ["chat"], "/v1")
    assert load(environment_of(settings)) == settings
    assert "hidden" not in str(effective(settings, {}))
    with pytest.raises(SettingsError, match="STEPSTREAM_GATEWAY_PROVIDERS is not JSON"):
        load({"STEPSTREAM_GATEWAY_PROVIDERS": "gpt"})
    with pytest.raises(SettingsError, match=r"gateway\.providers\[0\]\.base_url: Field required"):
        load({"STEPSTREAM_GATEWAY_PROVIDERS": '[{"name":"o"}]'})
