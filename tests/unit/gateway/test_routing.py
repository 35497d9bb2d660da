"""The first provider whose patterns fit a model's name gets its calls; the workers get the rest."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from stepstream.config import GatewaySettings, ProviderSettings, SettingsError, effective, environment_of, load
from stepstream.services.gateway.api_keys import credentials_of
from stepstream.services.gateway.context.saved_responses import KeptPieces, SavedResponses
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.base import History
from stepstream.services.gateway.routing import Routes, native
from stepstream.services.gateway.upstreams import Provider as Called
from stepstream.services.gateway.upstreams import Workers

OPENAI = ProviderSettings(name="openai", base_url="https://o", models=["gpt-*", "o?"], protocols=["chat", "responses"])
CLAUDE = ProviderSettings(
    name="anthropic", base_url="https://a", models=["claude-*", "gpt-claude"], protocols=["anthropic"]
)
INCOMING = [
    (b"host", b"gateway"),
    (b"connection", b"keep-alive"),
    (b"accept-encoding", b"gzip"),
    (b"content-type", b"application/json; charset=utf-8"),
    (b"x-stepstream-user", b"someone"),
    (b"anthropic-version", b"2023-06-01"),
    (b"openai-organization", b"org"),
    (b"authorization", b"Bearer theirs"),
]


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
def test_the_first_that_fits(model: str, name: str | None) -> None:
    routes = Routes([OPENAI, CLAUDE])
    for _ in range(2):
        found = routes.provider(model)
        assert (found.name if found else None) == name


def test_a_protocol_is_spoken_or_translated_or_refused() -> None:
    assert native("responses", OPENAI.protocols, "openai", "/v1/responses")
    assert not native("anthropic", OPENAI.protocols, "openai", "/v1/messages")
    with pytest.raises(BadRequest, match=r"anthropic serves this model in the protocol anthropic, neither in chat"):
        native("chat", CLAUDE.protocols, "anthropic", "/v1/chat/completions")


def called(declared: ProviderSettings) -> Called:
    return Called(declared, 1.0, None, Metrics())  # type: ignore[arg-type]


def test_a_provider_gets_the_callers_headers_but_those_of_the_connection_and_ours() -> None:
    sent = dict(called(OPENAI).headers(INCOMING, credentials_of(INCOMING), "chat"))
    assert sent == {
        b"anthropic-version": b"2023-06-01",
        b"openai-organization": b"org",
        b"content-type": b"application/json",
        b"authorization": b"Bearer theirs",
    }


@pytest.mark.parametrize(
    ("protocol", "name", "value"), [("chat", b"authorization", b"Bearer own"), ("anthropic", b"x-api-key", b"own")]
)
def test_a_declared_key_takes_the_place_of_the_callers(protocol: str, name: bytes, value: bytes) -> None:
    declared = ProviderSettings.model_validate(OPENAI.model_dump() | {"api_key": "own"})
    sent = dict(called(declared).headers(INCOMING, credentials_of(INCOMING), protocol))  # type: ignore[arg-type]
    assert sent[name] == value
    assert "theirs" not in str(sent)


def test_one_of_our_keys_goes_nowhere() -> None:
    headers = [(b"authorization", b"Bearer sk-stepstream-ab-secret"), (b"x-stepstream-key", b"sk-stepstream-ab-secret")]
    workers = Workers(GatewaySettings(), None, Metrics())  # type: ignore[arg-type]
    for target in (called(OPENAI), workers):
        assert "secret" not in str(target.headers(headers, credentials_of(headers), "chat"))


def test_a_key_for_another_protocol_is_sent_as_chat_wants_it() -> None:
    headers = [(b"x-api-key", b"theirs")]
    assert (b"authorization", b"Bearer theirs") in called(OPENAI).headers(headers, credentials_of(headers), "chat")


def test_providers_are_settings_like_others() -> None:
    declared = '[{"name":"o","base_url":"https://o","models":["gpt-*"],"api_key":"hidden"}]'
    settings = load({"STEPSTREAM_GATEWAY_PROVIDERS": declared})
    (provider,) = settings.gateway.providers
    assert (provider.name, provider.protocols, provider.path_prefix) == ("o", ["chat"], "/v1")
    assert load(environment_of(settings)) == settings
    assert "hidden" not in str(effective(settings, {}))
    with pytest.raises(SettingsError, match="STEPSTREAM_GATEWAY_PROVIDERS is not JSON"):
        load({"STEPSTREAM_GATEWAY_PROVIDERS": "gpt"})
    with pytest.raises(SettingsError, match=r"gateway\.providers\[0\]\.base_url: Field required"):
        load({"STEPSTREAM_GATEWAY_PROVIDERS": '[{"name":"o"}]'})


@pytest.fixture
def opened() -> Iterator[Callable[[int], KeptPieces]]:
    """Opens a store of conversations in memory with a limit in bytes, and closes it after the test."""
    with ExitStack() as stack:
        yield lambda limit_bytes: stack.enter_context(closing(KeptPieces(None, limit_bytes, 60.0)))


def test_conversations_are_kept_up_to_a_number_of_bytes(opened: Callable[[int], KeptPieces]) -> None:
    histories = SavedResponses(opened(1_000))
    said = History([{"role": "user", "content": "x" * 100}], "t")
    for turn in range(5):
        histories.keep("acme", f"r{turn}", said, None, 0)
    assert histories.get("acme", "r0") is None
    assert histories.get("acme", "r4") == said
    assert histories.get("other", "r4") is None
    histories.keep("acme", "huge", History([{"role": "user", "content": "x" * 1_000}]), None, 0)
    assert histories.get("acme", "huge") is None


def test_the_conversation_of_an_erased_person_is_gone(opened: Callable[[int], KeptPieces]) -> None:
    erased = {("acme", "ada"): 5}
    histories = SavedResponses(opened(10_000), lambda tenant, user, at_us: at_us <= erased.get((tenant, user), -1))
    for name, user, at_us in (("before", "ada", 5), ("after", "ada", 6), ("other", "bob", 5), ("nobody", None, 5)):
        histories.keep("acme", name, History(), user, at_us)
    assert histories.get("acme", "before") is None
    histories.keep_items("acme", [{"id": "i1"}], "ada", 5)
    histories.keep_items("acme", [{"id": "i2"}], "ada", 6)
    assert (histories.item("acme", "i1"), histories.item("acme", "i2")) == (None, {"id": "i2"})
    assert histories.item("other", "i2") is None
    erased.clear()
    assert histories.get("acme", "before") is None
    assert all(histories.get("acme", name) is not None for name in ("after", "other", "nobody"))


def test_a_conversation_goes_with_the_erasure_of_anybody_who_took_part_in_it(
    opened: Callable[[int], KeptPieces],
) -> None:
    erased: set[str] = set()
    histories = SavedResponses(opened(10_000), lambda tenant, user, at_us: user in erased and at_us <= 5)
    for name, before, user, at_us in (("one", "", "ada", 5), ("two", "one", "bob", 6), ("three", "two", None, 7)):
        said = histories.get("acme", before) if before else History()
        assert said is not None
        histories.keep("acme", name, said, user, at_us)
    assert histories.get("acme", "three") == History(persons={"ada": 5, "bob": 6})
    erased.add("bob")
    assert histories.get("acme", "three") is not None, "he came in after it"
    erased.add("ada")
    assert [histories.get("acme", name) for name in ("one", "two", "three")] == [None] * 3
