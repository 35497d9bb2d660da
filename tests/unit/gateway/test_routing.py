"""A call's path, model and protocol decide its upstream; among workers the least loaded healthy one gets it."""

import pytest

from stepstream.config import ProviderSettings
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.routing import (
    LONGEST_PAUSE_S,
    ProviderRoutes,
    WorkerPool,
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


def test_the_worker_with_the_fewest_calls_is_chosen_and_equal_ones_in_turn() -> None:
    pool = WorkerPool(["http://a", "http://b/"])
    chosen = []
    for _ in range(4):
        upstream = pool.choose(0.0)
        assert upstream is not None
        upstream.in_flight += 1
        chosen.append(upstream.url)
    assert chosen == ["http://a", "http://b"] * 2
    pool.upstreams[1].in_flight = 0
    assert pool.choose(0.0) is pool.upstreams[1]


def test_a_failed_worker_is_skipped_until_its_pause_ends() -> None:
    pool = WorkerPool(["http://a", "http://b"])
    a, b = pool.upstreams
    a.failed("refused", 10.0)
    assert pool.choose(10.0) is b
    b.failed("refused", 10.0)
    assert pool.choose(10.01) is None
    assert 10.0 < pool.next_try() <= 10.1
    assert pool.choose(pool.next_try()) is not None
    assert "http://a: refused" in pool.faults()
    a.succeeded()
    assert pool.choose(10.01) is a


def test_pauses_grow_to_a_limit_and_concurrent_failures_count_once() -> None:
    pool = WorkerPool(["http://a"])
    (a,) = pool.upstreams
    for _ in range(64):
        a.failed("cut", 5.0)
    first = a.paused_until - 5.0
    pauses = []
    for _ in range(10):
        now = a.paused_until
        a.failed("refused", now)
        pauses.append(a.paused_until - now)
    assert first < pauses[0] < pauses[1]
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S)
