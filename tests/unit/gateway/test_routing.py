"""A call's path, model and protocol decide its provider."""

import pytest

from stepstream.config import ProviderSettings
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.routing import (
    ProviderRoutes,
    speaks_natively,
    split_session,
    with_version,
)

OPENAI = ProviderSettings(name="openai", base_url="https://o", models=["gpt-*", "o?"], protocols=["chat", "responses"])
CLAUDE = ProviderSettings(
    name="anthropic", base_url="https://a", models=["claude-*", "gpt-claude"], protocols=["anthropic"]
)


@pytest.mark.parametrize(
    ("path", "session", "rest"),
    [
        ("/v1/messages", "", "/v1/messages"),
        ("/t/s-1/v1/messages", "s-1", "/v1/messages"),
        ("/t/s-1/messages", "s-1", "/messages"),
        ("/v1/v1/messages", "", "/v1/messages"),  # Anthropic's client with a base address that ends with /v1
        ("/t/s-1/v1/v1/messages", "s-1", "/v1/messages"),
        ("/t/s-1", "s-1", "/"),
        ("/t//v1/messages", "", "/v1/messages"),
    ],
)
def test_a_session_is_split_off_the_path(path: str, session: str, rest: str) -> None:
    assert split_session(path) == (session, rest)


@pytest.mark.parametrize(
    ("path", "full_path"),
    [
        ("/v1/embeddings", "/v1/embeddings"),
        ("/embeddings", "/v1/embeddings"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/nowhere", None),
        ("/v1/../admin", None),
        ("/models/../../admin", None),
    ],
)
def test_only_paths_of_model_apis_get_a_version(path: str, full_path: str | None) -> None:
    assert with_version(path) == full_path


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-5", "openai"),
        ("gpt-claude", "openai"),
        ("o3", "openai"),
        ("claude-1", "anthropic"),
        ("demo", None),
        ("", None),
    ],
)
def test_the_first_provider_whose_pattern_matches_serves_a_model(model: str, name: str | None) -> None:
    routes = ProviderRoutes([OPENAI, CLAUDE])
    for _ in range(2):
        provider = routes.for_model(model)
        assert (provider.name if provider else None) == name


def test_a_protocol_is_native_or_translated_or_refused() -> None:
    assert speaks_natively("responses", OPENAI.protocols, "openai", "/v1/responses")
    assert not speaks_natively("anthropic", OPENAI.protocols, "openai", "/v1/messages")
    with pytest.raises(BadRequest, match=r"anthropic serves this model in the protocol anthropic, neither in chat"):
        speaks_natively("chat", CLAUDE.protocols, "anthropic", "/v1/chat/completions")
