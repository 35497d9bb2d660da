"""Whose a call is: headers, a session in path or key, a trace; and what API keys allow."""

import pytest

from stepstream.config import GatewaySettings
from stepstream.services.gateway.api_keys import Credentials, allow, credentials_of, new_key
from stepstream.services.gateway.errors import BadRequest, Forbidden, Unauthorized
from stepstream.services.gateway.identity import identify
from stepstream.services.gateway.routing import take_session, versioned
from stepstream.topics.events import ApiKey, new_api_key

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("header", "value", "said"),
    [
        (b"x-stepstream-step", b"-1", "whole number"),
        (b"x-stepstream-step", b"99999999999", "whole number"),
        (b"x-stepstream-consent", b"yes", "train, analyse, none"),
        (b"x-stepstream-trajectroy", b"t", "unknown header"),
        (b"x-stepstream-task", b"\xff", "UTF-8"),
        (b"x-stepstream-task*", b"Jos%C3%A9", "must begin with"),
        (b"x-stepstream-task*", b"UTF-8''%ff", "UTF-8"),
        (b"x-stepstream-trajectory*", b"UTF-8''a%0d%0ab", "cannot be printed"),
        (b"x-stepstream-task", b"t" * 300, "longer than"),
    ],
)
def test_a_header_that_cannot_be_used_is_refused(header: bytes, value: bytes, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        identify([(header, value)], GatewaySettings())


def test_what_is_missing_comes_from_the_settings() -> None:
    identity = identify([(b"x-stepstream-trajectory", b"")], GatewaySettings(tenant="acme"))
    assert (identity.trajectory_id, identity.step_index, identity.tenant, identity.consent) == (
        "",
        None,
        "acme",
        "train",
    )


def test_a_header_wins_over_the_session_and_the_keys_tenant_over_the_header() -> None:
    headers = [(b"x-stepstream-trajectory", b"t"), (b"x-stepstream-tenant", b"claimed"), (b"x-stepstream-key", b"k")]
    identity = identify(headers, GatewaySettings(), "session", tenant="acme")
    assert (identity.trajectory_id, identity.tenant) == ("t", "acme")
    assert identify([], GatewaySettings(), "session").trajectory_id == "session"
    with pytest.raises(BadRequest, match="session is longer"):
        identify([], GatewaySettings(), "s" * 300)
    with pytest.raises(BadRequest, match="cannot be printed"):
        identify([], GatewaySettings(), "s\r\nset-cookie: x")


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", TRACE),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", ""),
        ("00-short-b7ad6b7169203331-01", ""),
        ("", ""),
    ],
)
def test_the_trace(header: str, trace: str) -> None:
    assert identify([(b"traceparent", header.encode())], GatewaySettings()).trace_id == trace


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(b"authorization", b"Bearer sk-abc")], ("", "", "", [(b"authorization", b"Bearer sk-abc")])),
        ([(b"authorization", b"Bearer any:s-1")], ("", "", "s-1", [(b"authorization", b"Bearer any")])),
        ([(b"x-api-key", b"any:s-1")], ("", "", "s-1", [(b"x-api-key", b"any")])),
        ([(b"authorization", b"Bearer sk-stepstream-ab12-s3-cr_t:s:1")], ("ab12", "s3-cr_t", "s:1", [])),
        ([(b"x-api-key", b"sk-stepstream-ab12-s")], ("ab12", "s", "", [])),
        ([(b"authorization", b"Basic dXNlcjpwYXNz")], ("", "", "", [(b"authorization", b"Basic dXNlcjpwYXNz")])),
        (
            [(b"x-stepstream-key", b"sk-stepstream-ab12-s"), (b"authorization", b"Bearer theirs")],
            ("ab12", "s", "", [(b"authorization", b"Bearer theirs")]),
        ),
        ([(b"x-stepstream-key", b"nonsense")], ("", "", "", [])),
    ],
)
def test_credentials(
    headers: list[tuple[bytes, bytes]], expected: tuple[str, str, str, list[tuple[bytes, bytes]]]
) -> None:
    found = credentials_of(headers)
    assert (found.key_id, found.secret, found.session, found.upstream) == expected
    assert "secret" not in repr(found)


def key(**fields: object) -> tuple[Credentials, ApiKey]:
    key_id, whole, digest = new_key()
    shown = credentials_of([(b"authorization", f"Bearer {whole}:session".encode())])
    assert shown.key_id == key_id
    values = {"key_id": key_id, "digest": digest, "tenant": "acme", "scopes": ["calls"]} | fields
    return shown, new_api_key(event_id="e", occurred_at_us=1, **values)  # type: ignore[arg-type]


def test_a_key_gives_its_tenant_for_what_it_may_do() -> None:
    shown, record = key()
    assert allow(shown, record, "calls") == "acme"
    with pytest.raises(Forbidden, match="may not be used for feedback, but for: calls"):
        allow(shown, record, "feedback")


@pytest.mark.parametrize("fields", [{"revoked": True}, {"digest": "0" * 64}, {"digest": ""}])
def test_a_key_that_is_not_valid_is_refused(fields: dict[str, object]) -> None:
    shown, record = key(**fields)
    with pytest.raises(Unauthorized) as caught:
        allow(shown, record, "calls")
    assert shown.secret not in str(caught.value)
    with pytest.raises(Unauthorized):
        allow(shown, None, "calls")


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
def test_a_session_in_the_path(path: str, session: str, rest: str) -> None:
    assert take_session(path) == (session, rest)


@pytest.mark.parametrize(
    ("path", "whole"),
    [
        ("/v1/embeddings", "/v1/embeddings"),
        ("/embeddings", "/v1/embeddings"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/nowhere", None),
        ("/v1/../admin", None),
        ("/models/../../admin", None),
    ],
)
def test_paths_of_model_apis(path: str, whole: str | None) -> None:
    assert versioned(path) == whole
